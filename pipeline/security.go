package pipeline

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// SASL mechanisms.
const (
	SASLPlain       = "PLAIN"
	SASLScramSHA256 = "SCRAM-SHA-256"
	SASLScramSHA512 = "SCRAM-SHA-512"
	SASLOAuthBearer = "OAUTHBEARER"
)

// KafkaConfig is the section [kafka]: how every client of the process knows the brokers, and how they know it. All of it
// is empty by default: connections in the clear, no user. Secrets are in files or environment variables that it names.
type KafkaConfig struct {
	// TLS encrypts the connections and checks the brokers' certificates.
	TLS bool `toml:"tls"`
	// CAFile holds the certificates (PEM) of the authorities that the brokers' must be signed by; empty for the system's.
	CAFile string `toml:"ca_file"`
	// CertFile and KeyFile hold this process's certificate and private key (PEM), where brokers ask for one. They are read
	// again for every connection, so that they can be renewed while the process runs.
	CertFile string `toml:"cert_file"`
	KeyFile  string `toml:"key_file"`
	// ServerName is the name the brokers' certificates must be for; empty for the host name of each.
	ServerName string `toml:"server_name"`

	// SASL is the mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; empty for none.
	SASL string `toml:"sasl"`
	// User of PLAIN and SCRAM.
	User string `toml:"user"`
	// PasswordFile or PasswordEnv names the file or the environment variable with the password of PLAIN and SCRAM.
	PasswordFile string `toml:"password_file"`
	PasswordEnv  string `toml:"password_env"`
	// TokenFile or TokenEnv names the file or the environment variable with the token of OAUTHBEARER. Files are read again
	// at every authentication; a token that expires needs one, renewed by whoever issues it.
	TokenFile string `toml:"token_file"`
	TokenEnv  string `toml:"token_env"`
	// Cleartext lets PLAIN and OAUTHBEARER send their secret without TLS: for networks that encrypt by themselves.
	Cleartext bool `toml:"cleartext"`

	// Password and Token are here to be refused.
	Password misplaced `toml:"password"`
	Token    misplaced `toml:"token"`
}

// misplaced is a key at which a configuration must not hold a secret.
type misplaced struct{}

// UnmarshalText refuses, without a word of what it refuses.
func (*misplaced) UnmarshalText([]byte) error {
	return errors.New("a secret does not belong into the configuration: put it into a file that only this user can read and name that in kafka.password_file (token_file), or into an environment variable named in kafka.password_env (token_env)")
}

// Enabled reports whether anything is set.
func (c KafkaConfig) Enabled() bool { return c != KafkaConfig{} }

// Validate checks the section on its own; it opens no file.
func (c KafkaConfig) Validate() error {
	for _, s := range []struct{ key, value string }{
		{"ca_file", c.CAFile}, {"cert_file", c.CertFile}, {"key_file", c.KeyFile}, {"server_name", c.ServerName},
	} {
		if s.value != "" && !c.TLS {
			return fmt.Errorf("kafka.%s = %q has no effect without kafka.tls = true: set that, or leave this out", s.key, s.value)
		}
	}
	switch {
	case c.CertFile != "" && c.KeyFile == "":
		return fmt.Errorf("kafka.cert_file = %q needs kafka.key_file, the private key of the certificate", c.CertFile)
	case c.KeyFile != "" && c.CertFile == "":
		return fmt.Errorf("kafka.key_file = %q needs kafka.cert_file, the certificate of the key", c.KeyFile)
	}
	switch c.SASL {
	case "":
		return c.unused("kafka.sasl is not set", "user", "password_file", "password_env", "token_file", "token_env", "cleartext")
	case SASLPlain, SASLScramSHA256, SASLScramSHA512:
		if c.User == "" {
			return fmt.Errorf("kafka.user is empty: kafka.sasl = %q needs one", c.SASL)
		}
		if err := one("password", c.PasswordFile, c.PasswordEnv, c.SASL); err != nil {
			return err
		}
		if err := c.unused(fmt.Sprintf("kafka.sasl = %q has no token", c.SASL), "token_file", "token_env"); err != nil {
			return err
		}
	case SASLOAuthBearer:
		if err := one("token", c.TokenFile, c.TokenEnv, c.SASL); err != nil {
			return err
		}
		if err := c.unused(fmt.Sprintf("kafka.sasl = %q has the user in its token", c.SASL), "user", "password_file", "password_env"); err != nil {
			return err
		}
	default:
		return fmt.Errorf("kafka.sasl = %q: %s, %s, %s, %s, or empty for none", c.SASL, SASLPlain, SASLScramSHA256, SASLScramSHA512, SASLOAuthBearer)
	}
	if sends := c.SASL == SASLPlain || c.SASL == SASLOAuthBearer; sends && !c.TLS && !c.Cleartext {
		return fmt.Errorf("kafka.sasl = %q sends its secret as it is: set kafka.tls = true, choose SCRAM, or set kafka.cleartext = true where the network itself is encrypted", c.SASL)
	} else if c.Cleartext && (!sends || c.TLS) {
		return c.unused("nothing is sent in the clear", "cleartext")
	}
	return nil
}

// unused refuses keys that are set and have no effect.
func (c KafkaConfig) unused(why string, keys ...string) error {
	set := map[string]bool{
		"user": c.User != "", "password_file": c.PasswordFile != "", "password_env": c.PasswordEnv != "",
		"token_file": c.TokenFile != "", "token_env": c.TokenEnv != "", "cleartext": c.Cleartext,
	}
	for _, k := range keys {
		if set[k] {
			return fmt.Errorf("kafka.%s has no effect: %s; leave it out", k, why)
		}
	}
	return nil
}

// one checks that a secret has exactly one place.
func one(secret, file, env, mechanism string) error {
	if (file == "") == (env == "") {
		return fmt.Errorf("kafka.%s_file = %q, kafka.%s_env = %q: kafka.sasl = %q needs exactly one of them", secret, file, secret, env, mechanism)
	}
	return nil
}

// options are those of a client. Files and variables are read once, so that what is missing is told at the start.
func (c KafkaConfig) options() ([]kgo.Opt, error) {
	var opts []kgo.Opt
	if c.TLS {
		t, err := c.tls()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(t))
	}
	if c.SASL != "" {
		if _, err := c.secret(); err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(c.mechanism()))
	}
	return opts, nil
}

func (c KafkaConfig) tls() (*tls.Config, error) {
	t := &tls.Config{ServerName: c.ServerName, MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		var err error
		if t.RootCAs, err = readCertificates("kafka.ca_file", c.CAFile); err != nil {
			return nil, err
		}
	}
	if c.CertFile != "" {
		own := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("kafka.cert_file, kafka.key_file: %w", err)
			}
			return &cert, nil
		}
		if _, err := own(); err != nil {
			return nil, err
		}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() }
	}
	return t, nil
}

// readCertificates reads the authorities in a key's file.
func readCertificates(key, file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %s holds no certificate in PEM form", key, file)
	}
	return pool, nil
}

// mechanism reads the secret again at every authentication.
func (c KafkaConfig) mechanism() sasl.Mechanism {
	switch c.SASL {
	case SASLOAuthBearer:
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := c.secret()
			return oauth.Auth{Token: token.Reveal()}, err
		})
	case SASLPlain:
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := c.secret()
			return plain.Auth{User: c.User, Pass: password.Reveal()}, err
		})
	}
	auth := func(context.Context) (scram.Auth, error) {
		password, err := c.secret()
		return scram.Auth{User: c.User, Pass: password.Reveal()}, err
	}
	if c.SASL == SASLScramSHA256 {
		return scram.Sha256(auth)
	}
	return scram.Sha512(auth)
}

// secret reads the password or token.
func (c KafkaConfig) secret() (Secret, error) {
	key, file, env := "kafka.password", c.PasswordFile, c.PasswordEnv
	if c.SASL == SASLOAuthBearer {
		key, file, env = "kafka.token", c.TokenFile, c.TokenEnv
	}
	return readSecret(key, file, env)
}

// readSecret reads the secret of a key from the environment variable or the file that the configuration names.
func readSecret(key, file, env string) (Secret, error) {
	if env != "" {
		text := os.Getenv(env)
		if text == "" {
			return Secret{}, fmt.Errorf("%s_env: the environment variable %s is not set", key, env)
		}
		return NewSecret(text), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return Secret{}, fmt.Errorf("%s_file: %w", key, err)
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return Secret{}, fmt.Errorf("%s_file: %s is empty", key, file)
	}
	return NewSecret(secret), nil
}
