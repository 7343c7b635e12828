// Package tracing follows rollouts through the stages with OpenTelemetry spans.
//
// Every rollout has one trace. Its id, and those of its spans, are derived from the run, the group and the rollout: work that
// is done again makes the same span again, never a second one, every stage knows the ids without being told, and a record
// does not depend on whether anybody watches. A group has a trace of its own, and so has a training step; links lead from one
// to the other:
//
//	rollout  task → rollout → setup, model call → generate, environment, score, teach
//	         rollout → scored → outcome → trained
//	group    score (links to its rollouts) → outcome
//	step     pack (links to its samples) → train (links to its samples) → publish
//
// Whether a group is traced is drawn from its id against the sample ratio, so that it is whole or not there, and alike in
// every stage.
//
// Hard guarantees: a nil *Tracer is tracing that is off, and does nothing; nothing here blocks or fails a stage. Spans wait in
// a bounded queue for the collector, and what does not fit, or the collector does not take, is dropped and counted. They are
// an account of the work, no part of it: a stage that is killed between its transaction and its spans leaves these out.
//
// The parts: ids, context (the traceparent of records and requests), span and attributes, tracer, queue.
package tracing
