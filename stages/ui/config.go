package ui

import (
	"fmt"
	"net"

	"github.com/prl-project/prl/pipeline"
)

// Config is the section [ui].
type Config struct {
	// Enabled makes the page part of --stage all.
	Enabled bool `toml:"enabled"`
	// Listen is the address of the page; port 0 takes a free one. Where --stage all finds it taken, it takes a free one, too.
	// An address that other machines can reach needs a Token.
	Listen string `toml:"listen"`
	// Token is what readers must know; empty for none. Give it in PRL__UI__TOKEN rather than in a file. A browser is let in
	// by /?token=… once, programs send it as bearer token.
	Token pipeline.Secret `toml:"token"`
	// MaxRollouts is how many of the newest rollouts can be searched, at 64 bytes each. Older ones stay in the files.
	MaxRollouts int `toml:"max_rollouts"`
	// TailMiB bounds the newest records that are kept whole until the sink has written them.
	TailMiB int `toml:"tail_mib"`
}

// DefaultConfig shows the page to this machine.
func DefaultConfig() Config {
	return Config{Enabled: true, Listen: "localhost:8080", MaxRollouts: 2_000_000, TailMiB: 64}
}

// Validate checks the section on its own.
func (c Config) Validate() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("ui.listen = %q: want host:port: %w", c.Listen, err)
	}
	if !loopback(host) && c.Token.Reveal() == "" {
		return fmt.Errorf("ui.listen = %q can be reached by other machines: set a token (PRL__UI__TOKEN), or listen on localhost", c.Listen)
	}
	switch {
	case c.MaxRollouts < 1000 || c.MaxRollouts > 1<<28:
		return fmt.Errorf("ui.max_rollouts = %d: from 1000 to %d", c.MaxRollouts, 1<<28)
	case c.TailMiB < 1 || c.TailMiB > 1<<16:
		return fmt.Errorf("ui.tail_mib = %d: from 1 to %d", c.TailMiB, 1<<16)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
