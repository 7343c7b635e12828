package main

var restart = section{name: "restart", title: "Restart: from a process's start to its first progress, after a SIGKILL with 6,000 groups in flight", runs: []run{
	{pkg: "stages/flowbench", benchtime: "1x", figures: restarts()},
}}

// restarts are the figures of BenchmarkRestart. Records that are read do not depend on the machine.
func restarts() (list []figure) {
	add := func(words, bench string) {
		list = append(list, figure{name: words, bench: bench, unit: "ms"}, figure{name: words + ", read", bench: bench, unit: "records"},
			figure{name: words + ", until its code runs", bench: bench, unit: "exec-ms", detail: true}, figure{name: words + ", CPU", bench: bench, unit: "cpu-ms", detail: true})
	}
	for _, age := range []struct{ groups, words string }{{"10048", "10⁴ groups"}, {"100032", "10⁵ groups"}} {
		for _, stage := range []string{"emitter", "inference", "envserver", "scorer", "packer", "trainer", "eval", "sink"} {
			add(stage+" after "+age.words, "Restart/groups="+age.groups+"/"+stage)
		}
	}
	for _, stage := range []string{"scorer", "packer"} {
		add(stage+" after 10⁴ groups on Kafka", "Restart/kafka/"+stage)
	}
	return list
}
