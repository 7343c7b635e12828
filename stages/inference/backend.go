package inference

import "context"

// Policy is one policy version as its record published it, the bytes verified, or a frozen policy. Weights are whole, whatever
// the version was published as, and the server's: a backend that needs them after Load has returned copies them.
type Policy struct {
	Name      string // of a frozen policy; empty for a version of the one that is trained
	Version   int64  // 0 for a frozen policy
	Weights   []byte // safetensors
	Config    []byte // Hugging Face config.json
	Tokenizer []byte // Hugging Face tokenizer.json
}

// A Backend samples from loaded policies. The server in front of it decides what is loaded, holds requests, bounds their
// number and speaks HTTP; so a backend on other hardware is this interface alone.
//
// Generate gets requests that are valid by themselves, after the first Load. One with a pin is for a loaded version,
// which is not unloaded before Generate returns. One without follows the newest loaded version: from one token to the
// next it goes over to a newer one, without being dropped. What a request gets depends on the request and the versions
// that serve it, never on other requests. One that names a frozen policy is for one that is loaded, and its completion has
// no versions. Probe gets the same: a pin that is loaded, or a frozen policy that is.
//
// Texts, several choices and everything else that a client sees of OpenAI's interface is the server's. What it needs of a
// backend for streaming and stop strings is Request.OnTokens.
type Backend interface {
	Generator
	Prober
	// Load makes a version ready to serve beside those loaded before, or a frozen policy, which stays for ever. A version is
	// loaded once, or again after Unload. A frozen policy may have another shape than the one that is trained; the server has
	// seen to it that all have one tokenizer, which has no more tokens than the model.
	Load(ctx context.Context, p Policy) error
	// Unload gives up a version, never the newest.
	Unload(version int64)
	// Limits are the longest sequences of a policy in tokens: prompt and completion together, and of a probe. An empty name is
	// the policy that is trained; 0 before its first Load.
	Limits(policy string) (completed, probed int)
	// Run does the work until ctx ends, then fails what is left with CodeStopping.
	Run(ctx context.Context) error
}
