package envserver

import "github.com/prl-project/prl/schemas"

// Only makes the server one that measures beside a run that stands still, whose tasks it must not play, as it may have
// other settings. What plays denies stays where it is: unfinished, not listed as started, with its crashes. announce hears
// of every environment, in place of the topic envs. Both are called by goroutines of Run, which comes after.
func (s *Server) Only(plays func(*schemas.Task) bool, announce func(*schemas.EnvInfo)) {
	s.pool.plays, s.announced = plays, announce
}
