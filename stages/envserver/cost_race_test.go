//go:build race

package envserver

// raced says that the race detector has its own part in what is allocated.
const raced = true
