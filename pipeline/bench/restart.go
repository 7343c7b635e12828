package main

var restart = section{name: "restart", title: "Restart: time to the first progress, with 6,000 groups in flight", runs: []run{
	{pkg: "stages", benchtime: "1x", figures: restarts()},
}}

// restarts are the figures of BenchmarkRestart. Records that are read do not depend on the machine.
func restarts() (list []figure) {
	for _, age := range []struct{ groups, words string }{{"10048", "10⁴ groups"}, {"100032", "10⁵ groups"}} {
		for _, stage := range []string{"emitter", "inference", "envserver", "scorer", "packer", "trainer", "eval", "sink"} {
			bench := "Restart/groups=" + age.groups + "/" + stage
			list = append(list, figure{name: stage + " after " + age.words, bench: bench, unit: "ms"},
				figure{name: stage + " after " + age.words + ", read", bench: bench, unit: "records"})
		}
	}
	return list
}
