//go:build !amd64

package lm

// vectors says that there is code for this processor's vectors.
const vectors = false

func tile4(int, *float32, int, int, *float32, int, *float32, int, *[16]int32, bool) {
	panic("no vectors")
}
func tile1(int, *float32, int, *float32, int, *float32, *[16]int32, bool) { panic("no vectors") }
func exp8(*float32, int)                                                  { panic("no vectors") }
