package main

import (
	"context"
	"encoding/csv"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/deploy/kafka"
	"github.com/prl-project/prl/deploy/kafka/kafkatest"
	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/top"
	"github.com/prl-project/prl/stages/trainer"
)

// A secured is an Apache Kafka with TLS, users and an authorizer, and what a test needs to use it.
type secured struct {
	*kafka.Cluster
	*kafka.Security
	admin *kgo.Client // may do everything
}

// passwordEnv names the environment variable with everybody's password, which TestMain sets.
const passwordEnv = "PRL_TEST_KAFKA_PASSWORD"

const password = "wonder-land"

// startSecured starts it with users, whose passwords are all the same.
func startSecured(t *testing.T, users ...string) *secured {
	t.Helper()
	passwords := map[string]string{}
	for _, u := range users {
		passwords[u] = password
	}
	// Nobody kills this one: it may be as slow as the machine makes it.
	patient := map[string]string{"broker.session.timeout.ms": "30000"}
	cfg, security, err := kafka.Secure(kafka.Config{Dir: t.TempDir(), Properties: patient}, passwords)
	if err != nil {
		t.Fatal(err)
	}
	c := kafkatest.Start(t, cfg)
	admin, err := kgo.NewClient(kgo.SeedBrokers(c.Addrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	return &secured{c, security, admin}
}

// aclTable is deploy/kafka/acls.csv for a run, as rows of principal, resource, pattern, name and operation.
func aclTable(t *testing.T, run string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository(t), "deploy/kafka/acls.csv"))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(strings.ReplaceAll(string(text), "<run>", run))).ReadAll()
	if err != nil || len(rows) < 2 {
		t.Fatalf("acls.csv: %d rows, %v", len(rows), err)
	}
	return rows[1:]
}

// allow gives the rights of rows, and waits until they hold.
func (s *secured) allow(t *testing.T, rows [][]string) {
	t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	for _, row := range rows {
		c := kmsg.NewCreateACLsRequestCreation()
		var err [3]error
		c.Principal, c.ResourceName, c.Host, c.PermissionType = row[0], row[3], "*", kmsg.ACLPermissionTypeAllow
		c.ResourceType, err[0] = kmsg.ParseACLResourceType(row[1])
		c.ResourcePatternType, err[1] = kmsg.ParseACLResourcePatternType(row[2])
		c.Operation, err[2] = kmsg.ParseACLOperation(row[4])
		if err := errors.Join(err[:]...); err != nil {
			t.Fatalf("%v: %v", row, err)
		}
		req.Creations = append(req.Creations, c)
	}
	resp, err := req.RequestWith(t.Context(), s.admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resp.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			t.Fatal(err)
		}
	}
	for !s.allowed(t, rows) {
		select {
		case <-t.Context().Done():
			t.Fatal("the rights never held")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// allowed reports whether the broker knows all rights of rows.
func (s *secured) allowed(t *testing.T, rows [][]string) bool {
	t.Helper()
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	req.Operation, req.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	resp, err := req.RequestWith(t.Context(), s.admin)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range resp.Resources {
		for _, a := range r.ACLs {
			known[strings.ToLower(a.Principal+r.ResourceName+strings.ReplaceAll(a.Operation.String(), "_", ""))] = true
		}
	}
	for _, row := range rows {
		if !known[strings.ToLower(row[0]+row[3]+row[4])] {
			return false
		}
	}
	return true
}

// config is that of a run as a user, by SCRAM over TLS.
func (s *secured) config(t *testing.T, dir, run, user string, sets ...string) *stages.Config {
	t.Helper()
	cfg, err := configure(flags{
		Config: filepath.Join(repository(t), orderedConfig), Run: run, Brokers: s.ListenerAddrs(kafka.ListenerSASLSSL),
		Set: slices.Concat([]string{"dir=" + dir}, s.sets(user), sets),
	})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func (s *secured) sets(user string) []string {
	return []string{"kafka.tls=true", "kafka.ca_file=" + s.CAFile, "kafka.sasl=SCRAM-SHA-512", "kafka.user=" + user, "kafka.password_env=" + passwordEnv}
}

// runStage sets a stage up and runs it in this process, until it fails or ctx ends.
func runStage(ctx context.Context, t *testing.T, cfg *stages.Config, name string) error {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	app, err := stages.NewApp(cfg, cfg.Brokers, "one", log)
	if err != nil {
		return err
	}
	defer app.Close()
	if name == stages.SetupName {
		return app.SetUp(ctx)
	}
	stage, err := stages.Find(name)
	if err != nil {
		return err
	}
	if err := app.SetUp(ctx, stage); err != nil {
		return err
	}
	runner, err := stage.New(app, stage)
	if err != nil {
		return err
	}
	return runner.Run(ctx)
}

// TestSecured runs prl on an Apache Kafka with TLS, users and ACLs.
func TestSecured(t *testing.T) {
	t.Parallel()
	const run = "secured"
	users := []string{"alice", "d14.scorer"}
	for _, row := range aclTable(t, run) {
		users = append(users, strings.TrimPrefix(row[0], "User:"))
	}
	for _, d := range denials {
		users = append(users, d.principal())
	}
	s := startSecured(t, users...)
	t.Run("clients", func(t *testing.T) { testClients(t, s) })
	t.Run("stages", func(t *testing.T) { testOwnRights(t, s, run) })
	t.Run("denied", func(t *testing.T) { testDenied(t, s) })
	t.Run("dry run", func(t *testing.T) { testDryRun(t, s, run) })
}

// testClients connects in every way there is, and in ways that must fail, at once and clearly.
func testClients(t *testing.T, s *secured) {
	wrong := filepath.Join(t.TempDir(), "wrong")
	token := filepath.Join(t.TempDir(), "token")
	for file, text := range map[string]string{wrong: "not it\n", token: kafka.Token("alice", time.Hour) + "\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, key, err := s.Certificate("alice")
	if err != nil {
		t.Fatal(err)
	}
	_, strangers, err := kafka.Secure(kafka.Config{Dir: t.TempDir()}, nil) // another authority
	if err != nil {
		t.Fatal(err)
	}
	strange, strangeKey, err := strangers.Certificate("alice")
	if err != nil {
		t.Fatal(err)
	}
	type config = pipeline.KafkaConfig
	cases := map[string]struct {
		listener string
		config   config
		want     string // of the error
	}{
		"TLS with a certificate":        {kafka.ListenerSSL, config{TLS: true, CAFile: s.CAFile, CertFile: cert, KeyFile: key}, ""},
		"TLS without a certificate":     {kafka.ListenerSSL, config{TLS: true, CAFile: s.CAFile}, "a broker refuses the TLS connection: where it asks for a certificate, kafka.cert_file"},
		"TLS with another's":            {kafka.ListenerSSL, config{TLS: true, CAFile: s.CAFile, CertFile: strange, KeyFile: strangeKey}, "a broker refuses the TLS connection"},
		"a broker of another authority": {kafka.ListenerSSL, config{TLS: true, CAFile: strangers.CAFile, CertFile: cert, KeyFile: key}, "a broker's certificate is not to be trusted: check kafka.ca_file"},
		"a broker of another name":      {kafka.ListenerSSL, config{TLS: true, CAFile: s.CAFile, CertFile: cert, KeyFile: key, ServerName: "elsewhere"}, "kafka.server_name"},
		"OAUTHBEARER":                   {kafka.ListenerSASLSSL, config{TLS: true, CAFile: s.CAFile, SASL: pipeline.SASLOAuthBearer, TokenFile: token}, ""},
		"OAUTHBEARER, wrong":            {kafka.ListenerSASLSSL, config{TLS: true, CAFile: s.CAFile, SASL: pipeline.SASLOAuthBearer, TokenFile: wrong}, "the brokers refuse the user of section [kafka]"},
		"SCRAM in the clear":            {kafka.ListenerSASL, config{SASL: pipeline.SASLScramSHA256, User: "alice", PasswordEnv: passwordEnv}, ""},
		"PLAIN in the clear":            {kafka.ListenerSASL, config{SASL: pipeline.SASLPlain, User: "alice", PasswordEnv: passwordEnv, Cleartext: true}, ""},
	}
	for _, m := range []string{pipeline.SASLPlain, pipeline.SASLScramSHA256, pipeline.SASLScramSHA512} {
		c := config{TLS: true, CAFile: s.CAFile, SASL: m, User: "alice", PasswordEnv: passwordEnv}
		ok := cases[m]
		ok.listener, ok.config = kafka.ListenerSASLSSL, c
		cases[m] = ok
		c.PasswordEnv, c.PasswordFile = "", wrong
		ok.config, ok.want = c, "the brokers refuse the user of section [kafka]: check user, password_file"
		cases[m+", wrong password"] = ok
	}
	s.allow(t, [][]string{{"User:alice", "Topic", "PREFIXED", "alice.", "Create"}, {"User:alice", "Topic", "PREFIXED", "alice.", "Describe"}, {"User:alice", "Topic", "PREFIXED", "alice.", "DescribeConfigs"}})
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cases[name]
			if err := c.config.Validate(); err != nil {
				t.Fatal(err)
			}
			runConfig := pipeline.DefaultRunConfig()
			runConfig.Name = "alice"
			rt := &pipeline.Runtime{Run: runConfig, Brokers: s.ListenerAddrs(c.listener), Kafka: c.config, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
			err := rt.SetUp(t.Context(), nil)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (!errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want %q", err, c.want)
			case c.want != "" && strings.Contains(err.Error(), password):
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

// testOwnRights runs every stage as a process and a user of its own, with no rights but those of acls.csv, to the end of a
// run, and audits it.
func testOwnRights(t *testing.T, s *secured, run string) {
	const steps = "run.max_steps=3"
	s.allow(t, aclTable(t, run))
	dir := t.TempDir()
	start := func(stage string, more ...string) *process {
		args := []string{"--stage", stage, "--config", orderedConfig, "--run", run, "--telemetry", "", "--brokers", s.ListenerAddrs(kafka.ListenerSASLSSL)[0]}
		for _, set := range slices.Concat([]string{"dir=" + dir, steps, "ui.listen=localhost:0"}, s.sets(run+"."+stage), more) {
			args = append(args, "--set", set)
		}
		return startStage(t, nil, args...)
	}
	start(stages.SetupName).ended(t, runDeadline)
	inference := start("inference", "inference.listen=localhost:0")
	url := inference.logged(t, "inference serves", "addr=")
	processes := map[string]*process{"inference": inference}
	for _, stage := range stages.Flow {
		if stage.Name != "inference" && stage.Name != "cleanup" {
			processes[stage.Name] = start(stage.Name, "envserver.model_url="+url, "evals.catch.interval=3",
				"shadow.name=beside", "export.follow=true", `export.formats=["jsonl"]`)
		}
	}
	processes["trainer"].ended(t, runDeadline) // it has published the final version

	cfg := s.config(t, dir, run, "nobody", steps, "evals.catch.interval=3")
	cfg.Kafka, cfg.Brokers = pipeline.KafkaConfig{}, s.Addrs()
	app, err := stages.NewApp(cfg, cfg.Brokers, "watch", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer app.Close()
	if err := app.RunAll(t.Context(), io.Discard); err != nil { // until the run has ended
		t.Fatal(err)
	}
	for _, stage := range stages.Flow { // the sink is behind all that write
		name, p := stage.Name, processes[stage.Name]
		if p == nil {
			continue
		}
		if name != "trainer" {
			// The shadow has nothing left to train, and may have ended by itself.
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && (name != trainer.Shadow || !errors.Is(err, os.ErrProcessDone)) {
				t.Errorf("stage %s has ended: %v", name, err)
			}
			p.ended(t, runDeadline)
		}
		for _, word := range []string{"AUTHORIZATION", "may not"} {
			if text := p.text(&p.stderr); strings.Contains(text, word) {
				t.Errorf("stage %s was refused something: %s", name, tail(text, 2000))
			}
		}
	}
	start(stages.AuditName).ended(t, runDeadline)
	testOwnRightsOfTwo(t, s, run, dir)
	if table := start(top.Name).ended(t, runDeadline); !strings.Contains(table, "ended with version 3") {
		t.Errorf("top shows\n%s", table)
	}
	cleanup := start("cleanup", "cleanup.every=0s")
	cleanup.ended(t, runDeadline)
	if n := cleanup.logged(t, "cleaned up", "records="); n == "0" {
		t.Error("the clean-up deleted nothing")
	}
}

// testOwnRightsOfTwo runs the commands that read one run and write another, each as one user with the rights of acls.csv of both.
func testOwnRightsOfTwo(t *testing.T, s *secured, run, dir string) {
	t.Helper()
	for _, c := range []struct{ user, into, as, said, args string }{
		{stages.OriginName, "branch", stages.SetupFromName, "", "--stage setup --run branch --set run.max_steps=4 --from " + run + "@3"},
		{stages.ReplayName, "trained", stages.ReplayIntoName, "the same as that run's, byte for byte", "--stage replay --run " + run + " --set run.max_steps=3 --mode train --into trained"},
		{stages.ReplayName, "played", stages.ReplayIntoName, "policy version 3 on catch", "--stage replay --run " + run + " --set run.max_steps=3 --mode regenerate --policy 3 --k 1 --to-version 0 --into played"},
	} {
		user := run + "." + c.user
		var rows [][]string
		for _, row := range aclTable(t, c.into) {
			if row[0] == "User:"+c.into+"."+c.as {
				rows = append(rows, slices.Concat([]string{"User:" + user}, row[1:]))
			}
		}
		s.allow(t, rows)
		args := append(strings.Fields(c.args), "--config", orderedConfig, "--telemetry", "", "--brokers", s.ListenerAddrs(kafka.ListenerSASLSSL)[0])
		for _, set := range append([]string{"dir=" + dir}, s.sets(user)...) {
			args = append(args, "--set", set)
		}
		p := startStage(t, nil, args...)
		if out := p.ended(t, runDeadline); !strings.Contains(out, c.said) {
			t.Errorf("%s: want %q in\n%s", c.args, c.said, out)
		}
		if text := p.text(&p.stderr); strings.Contains(text, "AUTHORIZATION") || strings.Contains(text, "may not") {
			t.Errorf("%s was refused something: %s", c.args, tail(text, 2000))
		}
	}
}

// A denial is a stage that may not do one thing. Each has a run and a user of its own.
type denial struct {
	run, stage string
	user       string // of another stage; empty for its own
	without    string // operation and name that are taken away
	with       string // operation and name that are given instead
	unmade     bool   // there are no topics
	want       string
}

var denials = []denial{
	{run: "d1", stage: "scorer", without: "Read d1.traces", with: "Describe d1.traces", want: "the right Read on topic d1.traces (deploy/kafka/acls.csv"},
	{run: "d2", stage: "scorer", without: "Read d2.scorer", want: "the right Read on group d2.scorer ("},
	{run: "d3", stage: "scorer", without: "Write d3.scorer.", want: "the right Write on transactional id d3.scorer.one ("},
	{run: "d4", stage: "scorer", without: "Write d4.dlq", with: "Describe d4.dlq", want: "the right Write on topic d4.dlq ("},
	{run: "d5", stage: "scorer", without: "Write d5.samples", want: "the right Write on topic d5.samples ("},
	{run: "d6", stage: "emitter", without: "Describe d6.samples", want: "the right Describe on topic d6.samples ("},
	{run: "d7", stage: "envserver", without: "Write d7.envs", with: "Describe d7.envs", want: "the right Write on topic d7.envs ("},
	{run: "d8", stage: "trainer", without: "Write d8.policies", want: "the right Write on topic d8.policies ("},
	{run: "d9", stage: "inference", without: "Read d9.policies", with: "Describe d9.policies", want: "the right Read on topic d9.policies ("},
	{run: "d10", stage: "sink", without: "Read d10.metrics", with: "Describe d10.metrics", want: "the right Read on topic d10.metrics ("},
	{run: "d11", stage: "packer", user: "scorer", want: "the right Write on topic d11.outcomes ("},
	{run: "d12", stage: "scorer", unmade: true, want: "somebody who may runs `prl-stage --stage setup` once"},
	{run: "d13", stage: "setup", unmade: true, without: "Create d13.", want: "the right Create on topic d13."},
}

func (d denial) principal() string {
	if d.user != "" {
		return d.run + "." + d.user
	}
	return d.run + "." + d.stage
}

// testDenied takes one right away from a stage, or lets it reach for another's: it ends, and its error names the right.
func testDenied(t *testing.T, s *secured) {
	for _, d := range denials {
		t.Run(d.run+" "+d.stage, func(t *testing.T) {
			t.Parallel()
			var rows [][]string
			taken := d.without == ""
			for _, row := range aclTable(t, d.run) {
				if row[0] != "User:"+d.principal() {
					continue
				}
				if row[4]+" "+row[3] == d.without {
					taken = true
					continue
				}
				rows = append(rows, row)
			}
			if !taken {
				t.Fatalf("%s has no right %q", d.stage, d.without)
			}
			if operation, name, ok := strings.Cut(d.with, " "); ok {
				rows = append(rows, []string{"User:" + d.principal(), "Topic", "LITERAL", name, operation})
			}
			s.allow(t, rows)
			dir := t.TempDir()
			cfg := s.config(t, dir, d.run, d.principal(), "run.trace_partitions=1", "run.task_partitions=1", "inference.listen=")
			if !d.unmade {
				s.makeTopics(t, *cfg)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := runStage(ctx, t, cfg, d.stage)
			if !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), d.want) {
				t.Errorf("error %v, want %q", err, d.want)
			}
		})
	}
	t.Run("another's topic", func(t *testing.T) { // the transactional id is its own, the topic is not
		s.allow(t, append(aclTable(t, "d14"), []string{"User:d14.scorer", "Topic", "LITERAL", "d14.batches", "Describe"}))
		cfg := s.config(t, t.TempDir(), "d14", "d14.scorer")
		s.makeTopics(t, *cfg)
		rt := pipeline.Runtime{Brokers: cfg.Brokers, Kafka: cfg.Kafka}
		cl, err := rt.Client(kgo.TransactionalID("d14.scorer.one"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		err = pipeline.ProduceAll(t.Context(), cl, []*kgo.Record{{Topic: "d14.batches", Value: []byte("mine")}})
		if want := "the right Write on topic d14.batches"; !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	})
}

// makeTopics makes the topics of a run, and puts a record that nobody can read where the scorer reads.
func (s *secured) makeTopics(t *testing.T, cfg stages.Config) {
	t.Helper()
	cfg.Kafka, cfg.Brokers = pipeline.KafkaConfig{}, s.Addrs()
	if err := runStage(t.Context(), t, &cfg, stages.SetupName); err != nil {
		t.Fatal(err)
	}
	r := &kgo.Record{Topic: cfg.Run.Name + "." + pipeline.TopicTraces, Key: []byte("0"), Value: []byte("garbage")}
	if err := s.admin.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
}
