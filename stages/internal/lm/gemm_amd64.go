package lm

import "golang.org/x/sys/cpu"

// vectors says that this processor runs gemm_amd64.s and exp_amd64.s.
var vectors = cpu.X86.HasAVX2

// tile4 is C = A·B, or with add C += A·B, for four rows of C and sixteen columns, or those in the mask where it is not nil.
// Steps and distances of rows are in bytes: aStep from one k to the next. k is at least 1.
//
//go:noescape
func tile4(k int, a *float32, aRow, aStep int, b *float32, bStep int, c *float32, cRow int, mask *[16]int32, add bool)

// tile1 is tile4 for one row.
//
//go:noescape
func tile1(k int, a *float32, aStep int, b *float32, bStep int, c *float32, mask *[16]int32, add bool)

// exp8 replaces blocks of eight elements by their exp32, with the same bits. blocks is at least 1.
//
//go:noescape
func exp8(x *float32, blocks int)
