package trainer

import (
	"errors"

	"github.com/prl-project/prl/pipeline/faults"
)

// errKilled is the end of a worker that nobody here has ended.
var errKilled = errors.New("as the kernel does where memory runs out")

// outOfMemory says that an error shows a lack of memory.
func outOfMemory(err error) error {
	return &faults.Error{Fault: faults.TrainerOutOfMemory, Err: err}
}

// outOfMemory tells of an error after which the trainer starts over, if it shows a lack of memory. It is over when a version is
// published.
func (t *Trainer) outOfMemory(err error) {
	if shown, ok := errors.AsType[*faults.Error](err); ok {
		t.rt.Fault(t.as, shown.Fault, "", err)
	}
}
