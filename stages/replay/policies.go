package replay

import (
	"context"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Policies are the versions of the run, in order. There is at least one.
func Policies(ctx context.Context, src Source) (all []*schemas.PolicyVersion, err error) {
	for rec, err := range src.Read(ctx, pipeline.TopicPolicies, 0) {
		if err != nil {
			return nil, err
		}
		v, ok, err := decode[*schemas.PolicyVersion](ctx, rec)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("%v is no policy version that can be read", rec.Ref)
		}
		all = append(all, v)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the run has no policy version")
	}
	return all, nil
}
