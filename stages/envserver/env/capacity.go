package env

import "errors"

// Limited is an environment that has room for so many episodes at once, or rollouts if it is a [Host]. A runner begins no more
// of them; the others wait their turn without any of their time counting.
type Limited interface {
	// Capacity is how many there may be at once, those that run included; 0 for none. It may be another one at any time, is asked
	// for several times a second and answers at once.
	Capacity() int
}

// ErrFull says that an episode did not begin since there is no room for it. Start of a [Limited] environment may return it, for
// instance when it was wrong about its capacity: the rollout has not failed, it waits its turn again.
var ErrFull = errors.New("the environment has no room for another episode")
