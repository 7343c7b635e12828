//go:build !race

package envserver

const raced = false
