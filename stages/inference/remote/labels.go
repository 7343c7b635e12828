package remote

import (
	"fmt"

	"github.com/prl-project/prl/schemas"
)

// versions turns labels into versions. Tokens of another label were sampled by weights that this stage did not give.
func (f *fleet) versions(spans []span, tokens int) ([]schemas.VersionRun, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var runs []schemas.VersionRun
	at := 0
	for _, s := range spans {
		version, ok := f.labels[s.Version]
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: %q", errLabel, s.Version)
		case s.Start != at || s.End < s.Start:
			return nil, unusable{fmt.Errorf("labels of tokens %d to %d follow those up to %d", s.Start, s.End, at)}
		case s.End > s.Start && (len(runs) == 0 || runs[len(runs)-1].Version != version):
			runs = append(runs, schemas.VersionRun{Offset: s.Start, Version: version})
		}
		at = s.End
	}
	if at != tokens {
		return nil, unusable{fmt.Errorf("%d of %d tokens have a label", at, tokens)}
	}
	return runs, nil
}

// onlyBy holds the versions of tokens to the one that a request is pinned to, if it is.
func onlyBy(pin *int64, runs []schemas.VersionRun) error {
	if pin == nil {
		return nil
	}
	for _, r := range runs {
		if r.Version != *pin {
			return gone(*pin, r.Version)
		}
	}
	return nil
}
