package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/twmb/franz-go/pkg/kerr"
)

func TestKafkaConfigRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":           "",
		"tls = true": "",
		"tls = true\nca_file = 'ca'\ncert_file = 'c'\nkey_file = 'k'\nserver_name = 'n'": "",
		"sasl = 'SCRAM-SHA-256'\nuser = 'u'\npassword_file = 'p'":                        "",
		"sasl = 'PLAIN'\nuser = 'u'\npassword_env = 'P'\ntls = true":                     "",
		"sasl = 'OAUTHBEARER'\ntoken_file = 't'\ncleartext = true":                       "",
		"ca_file = 'ca'":                     "kafka.ca_file = \"ca\" has no effect without kafka.tls = true",
		"server_name = 'n'":                  "kafka.server_name = \"n\" has no effect without kafka.tls = true",
		"tls = true\ncert_file = 'c'":        "kafka.cert_file = \"c\" needs kafka.key_file",
		"tls = true\nkey_file = 'c'":         "kafka.key_file = \"c\" needs kafka.cert_file",
		"sasl = 'GSSAPI'":                    "kafka.sasl = \"GSSAPI\": PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
		"user = 'u'":                         "kafka.user has no effect: kafka.sasl is not set",
		"sasl = 'SCRAM-SHA-512'":             "kafka.user is empty",
		"sasl = 'SCRAM-SHA-512'\nuser = 'u'": "needs exactly one of them",
		"sasl = 'SCRAM-SHA-512'\nuser = 'u'\npassword_file = 'p'\npassword_env = 'P'": "needs exactly one of them",
		"sasl = 'SCRAM-SHA-512'\nuser = 'u'\npassword_file = 'p'\ntoken_env = 'T'":    "kafka.token_env has no effect",
		"sasl = 'SCRAM-SHA-512'\nuser = 'u'\npassword_file = 'p'\ncleartext = true":   "kafka.cleartext has no effect",
		"sasl = 'OAUTHBEARER'\ntls = true":                                            "needs exactly one of them",
		"sasl = 'OAUTHBEARER'\ntls = true\ntoken_file = 't'\nuser = 'u'":              "kafka.user has no effect",
		"sasl = 'PLAIN'\nuser = 'u'\npassword_file = 'p'":                             "set kafka.tls = true, choose SCRAM",
		"sasl = 'OAUTHBEARER'\ntoken_file = 't'":                                      "set kafka.tls = true, choose SCRAM",
	} {
		var c KafkaConfig
		if err := toml.Unmarshal([]byte(text), &c); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// kafkaSection is a configuration that has only [kafka].
type kafkaSection struct {
	Kafka KafkaConfig `toml:"kafka"`
}

func (*kafkaSection) Prepare(map[string]any) {}

func (c *kafkaSection) Validate() error { return c.Kafka.Validate() }

const password = "hunter2"

// TestNoSecretInTheConfiguration gives a password as a setting in every way there is: each is refused with what to do,
// and without the password.
func TestNoSecretInTheConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.toml")
	if err := os.WriteFile(file, []byte("[kafka]\nsasl = 'PLAIN'\npassword = '"+password+"'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"run.toml:3":      LoadConfig(file, nil, nil, &kafkaSection{}),
		"PRL__KAFKA__":    LoadConfig("", []string{"PRL__KAFKA__PASSWORD=" + password}, nil, &kafkaSection{}),
		"--set kafka.pas": LoadConfig("", nil, []string{"kafka.password=" + password}, &kafkaSection{}),
		"--set kafka.tok": LoadConfig("", nil, []string{"kafka.token=" + password}, &kafkaSection{}),
		"--set kafka:":    LoadConfig("", nil, []string{"kafka={password=\"" + password + "\"}"}, &kafkaSection{}),
	} {
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "kafka.password_file") || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSecretIsNeverShown(t *testing.T) {
	type inner struct{ unexported Secret }
	v := struct {
		Secret  Secret
		Pointer *Secret
		Map     map[string]Secret
		inner   inner
	}{NewSecret(password), new(Secret), map[string]Secret{"a": NewSecret(password)}, inner{NewSecret(password)}}
	var shown strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t"} {
		fmt.Fprintf(&shown, verb+" "+verb+" "+verb+"\n", v, &v, v.Secret)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&shown, nil), slog.NewJSONHandler(&shown, nil)} {
		slog.New(h).Info("all", "v", v, "secret", v.Secret, "in", []Secret{v.Secret})
	}
	for _, marshal := range []func(any) ([]byte, error){json.Marshal, toml.Marshal} {
		text, err := marshal(struct{ Secret Secret }{v.Secret})
		if err != nil {
			t.Fatal(err)
		}
		shown.Write(text)
	}
	fmt.Fprint(&shown, errors.New(v.Secret.String()))
	for _, form := range []string{password, fmt.Sprintf("%x", password), fmt.Sprintf("%X", password)} {
		if strings.Contains(shown.String(), form) {
			t.Errorf("%q is shown:\n%s", form, shown.String())
		}
	}
	if v.Secret.Reveal() != password || v.Secret.String() != hidden || (Secret{}).String() != "" {
		t.Errorf("secret %q shows %q, none shows %q", v.Secret.Reveal(), v.Secret, Secret{})
	}
}

// TestSecretsAreReadAgain changes the password's file between two authentications.
func TestSecretsAreReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	c := KafkaConfig{SASL: SASLPlain, User: "u", PasswordFile: file}
	if _, err := c.options(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "kafka.password_file") {
		t.Errorf("without the file: %v", err)
	}
	for _, password := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, sent, err := c.mechanism().Authenticate(context.Background(), "")
		if err != nil || !bytes.HasSuffix(sent, []byte("\x00"+password)) {
			t.Errorf("sends %q (%v), want password %s", sent, err, password)
		}
	}
	if err := os.WriteFile(file, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.options(); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("with an empty file: %v", err)
	}
	c = KafkaConfig{SASL: SASLOAuthBearer, TokenEnv: "PRL_TEST_TOKEN"}
	if _, err := c.options(); err == nil || !strings.Contains(err.Error(), "kafka.token_env: the environment variable PRL_TEST_TOKEN is not set") {
		t.Errorf("without the variable: %v", err)
	}
	t.Setenv("PRL_TEST_TOKEN", "abc")
	if _, sent, err := c.mechanism().Authenticate(context.Background(), ""); err != nil || !bytes.Contains(sent, []byte("Bearer abc\x01")) {
		t.Errorf("sends %q (%v)", sent, err)
	}
}

func TestFilesOfTLSAreChecked(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]KafkaConfig{
		"kafka.ca_file: open":                   {TLS: true, CAFile: empty + ".not"},
		"holds no certificate":                  {TLS: true, CAFile: empty},
		"kafka.cert_file, kafka.key_file: open": {TLS: true, CertFile: empty + ".not", KeyFile: empty},
	} {
		rt := &Runtime{Brokers: []string{"localhost:1"}, Kafka: c}
		if _, err := rt.Client(); !errors.Is(err, ErrFatal) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestDeniedNamesTheRight(t *testing.T) {
	rights := []Right{WriteTopic("demo.batches"), ReadGroup("demo.packer"), WriteTransactionalID("demo.packer.a")}
	for _, c := range []struct {
		err    error
		rights []Right
		want   string
	}{
		{kerr.TopicAuthorizationFailed, rights, "the brokers refuse: this user needs the right Write on topic demo.batches (deploy/kafka/acls.csv lists"},
		{kerr.GroupAuthorizationFailed, rights, "the right Read on group demo.packer"},
		{kerr.TransactionalIDAuthorizationFailed, rights, "the right Write on transactional id demo.packer.a"},
		{kerr.ClusterAuthorizationFailed, rights, "this user lacks a right on a cluster"},
		{kerr.SaslAuthenticationFailed, nil, "the brokers refuse the user of section [kafka]: check user, password_file"},
		{kerr.UnsupportedSaslMechanism, nil, "the brokers do not speak kafka.sasl here"},
	} {
		got := Denied(fmt.Errorf("produce: %w", c.err), c.rights...)
		if !errors.Is(got, ErrFatal) || !errors.Is(got, c.err) || !strings.Contains(got.Error(), c.want) {
			t.Errorf("%v becomes %v, want %q", c.err, got, c.want)
		}
		if again := Denied(got, ReadTopic("other")); again != got {
			t.Errorf("%v becomes %v", got, again)
		}
	}
	if err := Denied(kerr.NotLeaderForPartition, rights...); err != kerr.NotLeaderForPartition {
		t.Errorf("an error that passes becomes %v", err)
	}
	if err := Denied(nil, rights...); err != nil {
		t.Errorf("no error becomes %v", err)
	}
}

// TestOneMakerOfClients holds all code but tests to Runtime.Client, so that [kafka] is for every client of a process. The
// other place asks the Kafka that tests start, in the clear, whether it is there.
func TestOneMakerOfClients(t *testing.T) {
	var makers []string
	err := fs.WalkDir(os.DirFS(".."), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(filepath.Join("..", path))
		if bytes.Contains(text, []byte("kgo."+"NewClient(")) {
			makers = append(makers, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"deploy/kafka/node.go", "pipeline/runtime.go"}; !slices.Equal(makers, want) {
		t.Errorf("clients are made in %v, want %v alone", makers, want)
	}
}
