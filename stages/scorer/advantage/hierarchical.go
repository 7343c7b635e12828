package advantage

// newHierarchicalGRPO is grpo for episodes of several agents: those named are compared within one episode, as the solvers
// of one problem are, all others with their like across the whole group, as the proposers of problems are.
func newHierarchicalGRPO(o Options) Algorithm {
	return relative{compare: o.grpo(), episode: o.EpisodeAgents}
}
