package pipeline

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/prl-project/prl/schemas"
)

// SchemaRegistryConfig is the section [schema_registry]: a Schema Registry that speaks Confluent's API. With one, records
// are written in Confluent's framing (a zero byte, the schema's id in four bytes, Avro binary); without one, in Avro
// single-object encoding. With one, records in either framing are read, so a topic may hold both.
//
// The subject of a schema is its record's full name (RecordNameStrategy): prl.Trace, not <run>.traces-value. All runs
// write the same records, so there is one subject for each, and their number does not grow with that of the runs.
type SchemaRegistryConfig struct {
	// URLs of the registry, tried in order; none: there is none.
	URLs []string `toml:"urls"`
	// CAFile holds the certificates (PEM) of the authorities that the registry's must be signed by; empty for the system's.
	CAFile string `toml:"ca_file"`
	// User of HTTP basic authentication; empty for none.
	User string `toml:"user"`
	// PasswordFile or PasswordEnv names the file or the environment variable with the user's password.
	PasswordFile string `toml:"password_file"`
	PasswordEnv  string `toml:"password_env"`
	// Cleartext lets the password be sent without TLS: for this machine, and for networks that encrypt by themselves.
	Cleartext bool `toml:"cleartext"`
	// AutoRegister registers at the start what a subject lacks; else that is an error.
	AutoRegister bool `toml:"auto_register"`
	// Compatibility is set for a subject before a schema is registered there. BACKWARD_TRANSITIVE is what prl promises:
	// the newest version reads records of all earlier ones.
	Compatibility sr.CompatibilityLevel `toml:"compatibility"`
	// Timeout bounds the wait for an answer, further tries included.
	Timeout Duration `toml:"timeout"`
}

// DefaultSchemaRegistryConfig has no registry.
func DefaultSchemaRegistryConfig() SchemaRegistryConfig {
	return SchemaRegistryConfig{AutoRegister: true, Compatibility: sr.CompatBackwardTransitive, Timeout: Duration(10 * time.Second)}
}

// Validate checks the section on its own; it opens no file.
func (c SchemaRegistryConfig) Validate() error {
	switch {
	case c.Timeout <= 0:
		return fmt.Errorf("schema_registry.timeout = %v: more than 0", c.Timeout)
	case len(c.URLs) == 0 && (c.CAFile != "" || c.User != "" || c.Cleartext):
		return fmt.Errorf("schema_registry.urls is empty: without it nothing else in the section has an effect")
	case c.User == "" && (c.PasswordFile != "" || c.PasswordEnv != ""):
		return fmt.Errorf("schema_registry.user is empty, but a password is named: set the user, or leave the password out")
	case c.User != "" && (c.PasswordFile == "") == (c.PasswordEnv == ""):
		return fmt.Errorf("schema_registry.user = %q needs exactly one of schema_registry.password_file and schema_registry.password_env", c.User)
	case c.Cleartext && c.User == "":
		return fmt.Errorf("schema_registry.cleartext has no effect: schema_registry.user is empty, no secret is sent; leave it out")
	}
	for i, s := range c.URLs {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("schema_registry.urls holds, as number %d, no URL: write it as https://host:8081", i+1)
		case u.User != nil:
			return fmt.Errorf("schema_registry.urls: %s holds a user: set schema_registry.user and password_file or password_env", u.Redacted())
		case c.User != "" && u.Scheme == "http" && !c.Cleartext:
			return fmt.Errorf("schema_registry.user = %q sends its password to %s as it is: use https, or set schema_registry.cleartext = true", c.User, s)
		case c.CAFile != "" && u.Scheme == "http":
			return fmt.Errorf("schema_registry.urls: %s is not checked against schema_registry.ca_file = %q: use https, or leave that out", s, c.CAFile)
		}
	}
	return nil
}

// NewSchemaRegistry makes the client of a registry; nil where the configuration names none. It makes no connection.
func NewSchemaRegistry(cfg SchemaRegistryConfig, log *slog.Logger) (*SchemaRegistry, error) {
	if len(cfg.URLs) == 0 {
		return nil, nil
	}
	patience := time.Duration(cfg.Timeout) / time.Duration(len(cfg.URLs)) // so that one that hangs leaves time for the next
	opts := []sr.ClientOpt{sr.HTTPClient(&http.Client{Timeout: patience}), sr.URLs(slices.Clone(cfg.URLs)...), sr.UserAgent("prl")}
	if cfg.CAFile != "" {
		roots, err := readCertificates("schema_registry.ca_file", cfg.CAFile)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sr.DialTLSConfig(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}))
	}
	if cfg.User != "" {
		password, err := readSecret("schema_registry.password", cfg.PasswordFile, cfg.PasswordEnv)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sr.BasicAuth(cfg.User, password.Reveal()))
	}
	client, err := sr.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("schema_registry.urls: %w", err)
	}
	return &SchemaRegistry{cfg: cfg, client: client, log: log, ids: map[string]int{}, versions: map[int]schemas.Version{}}, nil
}
