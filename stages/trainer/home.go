package trainer

import (
	"context"

	"github.com/prl-project/prl/pipeline"
)

// A home is where a trainer's versions are: the run's topics, or the folder of a shadow trainer.
type home interface {
	// claim takes the name under which versions are published: whoever had it is fenced, and what it left open is ended.
	claim(ctx context.Context) (writer, error)
	// versions reads those that are published.
	versions(ctx context.Context) (history, error)
}

// A writer publishes versions while it has the name. After an error it is of no use.
type writer interface {
	version(ctx context.Context, v *made) error
	close()
}

// inTopics is the home of the run's own versions.
type inTopics struct{ rt *pipeline.Runtime }

func (h inTopics) claim(ctx context.Context) (writer, error) {
	p, err := claim(ctx, h.rt)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (h inTopics) versions(ctx context.Context) (history, error) { return versions(ctx, h.rt) }
