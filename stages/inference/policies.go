package inference

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prl-project/prl/schemas"
)

// none is no version.
const none int64 = -1

// policies knows which versions are published and keeps some of them loaded: always the newest that could be, and those
// that requests are pinned to, of which the least recently used goes when there are too many. A version in use is never
// unloaded.
type policies struct {
	load   func(ctx context.Context, p *schemas.PolicyVersion) error
	unload func(version int64)
	single bool          // only the newest can be asked
	hold   time.Duration // longest wait for a version

	*stock    // of loaded versions; exceeded only where all of them are in use and a new one is published. What follows is under its mutex
	published map[int64]*schemas.PolicyVersion
	newest    int64 // published
	loaded    map[int64]*residence
	changed   chan struct{} // closed when anything above changes
}

// residence is a version that is loaded, or being loaded.
type residence struct {
	ready bool
	users int
	used  uint64 // when it was used last, in uses
}

func newPolicies(limit int, hold time.Duration, load func(context.Context, *schemas.PolicyVersion) error, unload func(int64)) *policies {
	p := &policies{
		load: load, unload: unload, hold: hold, newest: none,
		published: map[int64]*schemas.PolicyVersion{}, loaded: map[int64]*residence{}, changed: make(chan struct{}),
	}
	p.join(newStock(limit - 1))
	return p
}

// publish makes versions known: requests held for them go on.
func (p *policies) publish(versions ...*schemas.PolicyVersion) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range versions {
		p.published[v.Version] = v
		p.newest = max(p.newest, v.Version)
	}
	p.broadcast()
}

// serveNewest loads the newest published version, if it is not yet, for requests without a pin; none if nothing is published.
func (p *policies) serveNewest(ctx context.Context) (version int64, err error) {
	p.mu.Lock()
	newest, done := p.newest, p.newest == p.serving()
	p.mu.Unlock()
	if done {
		return newest, nil
	}
	release, err := p.acquire(ctx, newest, true)
	if err != nil {
		return none, err
	}
	release()
	return newest, nil
}

// waitServing waits until there is a version for requests without a pin.
func (p *policies) waitServing(ctx context.Context) error {
	return p.wait(ctx, "no policy version has been published", func() (bool, error) { return p.serving() != none, nil })
}

// serving is the newest loaded version, which serves requests without a pin. The lock is held.
func (p *policies) serving() int64 {
	newest := none
	for v, r := range p.loaded {
		if r.ready {
			newest = max(newest, v)
		}
	}
	return newest
}

// behind is how many versions are published and newer than what serves; 0 before the first is served.
func (p *policies) behind() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	serving := p.serving()
	if serving == none {
		return 0
	}
	return p.newest - serving
}

// use waits until a version is loaded, and keeps it so until release is called.
func (p *policies) use(ctx context.Context, version int64) (release func(), err error) {
	return p.acquire(ctx, version, false)
}

// acquire does what use does; force loads the version beyond the limit where nothing can be unloaded.
func (p *policies) acquire(ctx context.Context, version int64, force bool) (release func(), err error) {
	var mine bool // this call loads it
	err = p.wait(ctx, fmt.Sprintf("policy version %d was not published, or found no room among those in use", version), func() (bool, error) {
		r := p.loaded[version]
		switch {
		case p.single && !force && version < p.newest:
			return false, refuse(http.StatusNotFound, CodeNoVersion, "policy version %d was asked for, but the servers hold one version, the newest, which is %d (inference.remote.eval_urls are for others)", version, p.newest)
		case r != nil && !r.ready:
			return false, nil
		case r != nil:
		case p.published[version] == nil && version < p.newest:
			return false, refuse(http.StatusNotFound, CodeNoVersion, "policy version %d does not exist: the newest is %d", version, p.newest)
		case p.published[version] == nil:
			return false, nil
		case p.makeRoom() || force:
			r, mine = &residence{}, true
			p.loaded[version] = r
		default:
			return false, nil
		}
		r.users++
		p.uses++
		r.used = p.uses
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if mine {
		if err := p.finishLoad(ctx, version); err != nil {
			return nil, err
		}
	}
	return sync.OnceFunc(func() { p.release(version) }), nil
}

// finishLoad loads a version outside the lock. Where it fails, whoever waits for the version tries for himself.
func (p *policies) finishLoad(ctx context.Context, version int64) error {
	p.mu.Lock()
	record := p.published[version]
	p.mu.Unlock()
	err := p.load(ctx, record)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.broadcast()
	if err != nil {
		delete(p.loaded, version)
		return &Error{Status: http.StatusInternalServerError, Code: CodeInternal, Message: fmt.Sprintf("load policy version %d", version), Cause: err}
	}
	p.loaded[version].ready = true
	return nil
}

func (p *policies) release(version int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.loaded[version]
	if r.users--; r.users > 0 {
		return
	}
	p.trim()
}

// wait calls done, under the lock, whenever something has changed, until it says so or fails; what names the wait that
// was too long.
func (p *policies) wait(ctx context.Context, what string, done func() (bool, error)) error {
	var deadline <-chan time.Time
	for {
		p.mu.Lock()
		ok, err := done()
		changed := p.changed
		p.mu.Unlock()
		if ok || err != nil {
			return err
		}
		if deadline == nil {
			t := time.NewTimer(p.hold)
			defer t.Stop()
			deadline = t.C
		}
		select {
		case <-changed:
		case <-deadline:
			return refuse(http.StatusGatewayTimeout, CodeHeldTooLong, "%s within %v", what, p.hold)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// broadcast wakes everyone who waits. The lock is held.
func (p *policies) broadcast() {
	close(p.changed)
	p.changed = make(chan struct{})
}
