package packer

// Begin is the state of the packer of a run that begins after a step of another one, with the group next.
func Begin(after, next int64) ([]byte, error) {
	s := state{Step: after, Next: next}
	return s.bytes()
}
