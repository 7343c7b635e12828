package kafka

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Names of the listeners that Secure adds, for Cluster.ListenerAddrs.
const (
	ListenerSSL     = "SSL"            // TLS; clients must have a certificate
	ListenerSASLSSL = "SASL_SSL"       // TLS; clients are known by SASL
	ListenerSASL    = "SASL_PLAINTEXT" // SASL in the clear
)

// Security is what the clients of a secured Kafka need.
type Security struct {
	// CAFile holds the certificate (PEM) that the brokers' are signed with.
	CAFile string
	ca     *authority
	dir    string
}

// Secure adds to cfg what a Kafka with TLS, users and an authorizer needs: the three listeners above, a certificate
// authority of its own below cfg.Dir, and users by name with their passwords, which are the same for PLAIN,
// SCRAM-SHA-256 and SCRAM-SHA-512. OAUTHBEARER takes what Token makes, whoever made it. Who has no right by an ACL may do
// nothing, but whoever comes by PLAINTEXT, as the brokers themselves do, may do everything: this is for tests.
func Secure(cfg Config, users map[string]string) (Config, *Security, error) {
	dir, err := filepath.Abs(filepath.Join(cfg.Dir, "tls"))
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return cfg, nil, fmt.Errorf("secure Kafka: %w", err)
	}
	s := &Security{CAFile: filepath.Join(dir, "ca.pem"), dir: dir}
	if s.ca, err = newAuthority(s.CAFile); err != nil {
		return cfg, nil, fmt.Errorf("secure Kafka: %w", err)
	}
	store := filepath.Join(dir, "broker.pem")
	cert, key, err := s.ca.sign("broker")
	if err == nil {
		err = os.WriteFile(store, slices.Concat(key, cert), 0o600)
	}
	if err != nil {
		return cfg, nil, fmt.Errorf("secure Kafka: %w", err)
	}
	cfg.Properties = maps.Clone(cfg.Properties)
	if cfg.Properties == nil {
		cfg.Properties = map[string]string{}
	}
	maps.Copy(cfg.Properties, map[string]string{
		"listeners": "PLAINTEXT://127.0.0.1:{port.PLAINTEXT},CONTROLLER://127.0.0.1:{port.CONTROLLER}," +
			"SSL://127.0.0.1:{port.SSL},SASL_SSL://127.0.0.1:{port.SASL_SSL},SASL_PLAINTEXT://127.0.0.1:{port.SASL_PLAINTEXT}",
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
		"ssl.keystore.type":              "PEM",
		"ssl.keystore.location":          store,
		"ssl.truststore.type":            "PEM",
		"ssl.truststore.location":        s.CAFile,
		// A certificate's user is its common name.
		"ssl.principal.mapping.rules":       "RULE:^CN=([^,]+).*$/$1/",
		"listener.name.ssl.ssl.client.auth": "required",
		"sasl.enabled.mechanisms":           "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"authorizer.class.name":             "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"allow.everyone.if.no.acl.found":    "false",
		"super.users":                       "User:ANONYMOUS",
	})
	var plain strings.Builder
	for _, name := range slices.Sorted(maps.Keys(users)) {
		fmt.Fprintf(&plain, " user_%s=%q", name, users[name])
		for _, m := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
			cfg.Format = append(cfg.Format, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", m, name, users[name]))
		}
	}
	const modules = "org.apache.kafka.common.security."
	for _, listener := range []string{"sasl_ssl", "sasl_plaintext"} {
		jaas := func(mechanism, module string) {
			cfg.Properties["listener.name."+listener+"."+mechanism+".sasl.jaas.config"] = modules + module + ";"
		}
		jaas("plain", "plain.PlainLoginModule required"+plain.String())
		jaas("scram-sha-256", "scram.ScramLoginModule required")
		jaas("scram-sha-512", "scram.ScramLoginModule required")
		jaas("oauthbearer", `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"`)
	}
	return cfg, s, nil
}

// Certificate makes a certificate for a user, and gives the files of it and of its private key (PEM).
func (s *Security) Certificate(user string) (certFile, keyFile string, err error) {
	cert, key, err := s.ca.sign(user)
	if err != nil {
		return "", "", fmt.Errorf("make a certificate for %s: %w", user, err)
	}
	certFile, keyFile = filepath.Join(s.dir, user+".cert.pem"), filepath.Join(s.dir, user+".key.pem")
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		return "", "", err
	}
	return certFile, keyFile, os.WriteFile(keyFile, key, 0o600)
}

// Token makes an unsigned OAUTHBEARER token for a user, as a Kafka that has no issuer configured takes it.
func Token(user string, valid time.Duration) string {
	now := time.Now()
	claims, _ := json.Marshal(map[string]any{"sub": user, "iat": now.Unix(), "exp": now.Add(valid).Unix()}) // it cannot fail
	enc := base64.RawURLEncoding
	return enc.EncodeToString([]byte(`{"alg":"none"}`)) + "." + enc.EncodeToString(claims) + "."
}
