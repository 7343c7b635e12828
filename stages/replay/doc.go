// Package replay looks at a recorded run again: what would have been trained under another configuration, what its
// rollouts are worth to another reward. The run is only read; what is made goes to a run of its own. README.md shows it.
//
// Recompute runs the scorer's and the packer's own cores over the recorded traces, in the recorded order of samples, the
// one thing that a log of several partitions does not say otherwise. So under the recorded configuration the batches are
// the recorded ones, byte for byte. Under another one the groups still come in that order, and a group that is packed
// some steps later or earlier than it was, as others were dropped or kept, stays as many steps old: its policy versions
// are numbered anew along with the steps (renumber). In ordered mode the order is that of the ids, and the groups are
// divided into waves anew (waves). Rescore gives recorded rollouts the rewards that their environment gives now.
//
//	Reads   traces, samples, batches, outcomes, eval_traces, policies: topics, or the sink's Parquet files
//	Writes  through Writer, to the topics of another run: samples, batches, outcomes and metrics (Recompute), or traces
//	Key     as on those topics
//	State   none: what is made is the same every time, and what is there already is not written again
//
// Hard guarantees, each with a test of its name: RecordedRun, AsyncRun, OrderedRun and ParquetRun (the recorded batches,
// byte for byte, of a run of an earlier version, of one whose order several scorers have made, of one in waves, and from
// its files), WrittenOnce (stopped and done again, nothing is written twice), OneWriter (of two that write to a run, only
// the later one does).
package replay
