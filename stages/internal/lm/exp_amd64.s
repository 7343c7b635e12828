#include "textflag.h"

// Constants of exp32, in its order: log2e, round, ln2Hi, ln2Lo, the polynomial, one; then the bounds, and what is beyond them.
DATA expConst<>+0(SB)/4, $0x3fb8aa3b // log2e
DATA expConst<>+4(SB)/4, $0x4b400000 // round
DATA expConst<>+8(SB)/4, $0x3f318000 // ln2Hi
DATA expConst<>+12(SB)/4, $0xb95e8083 // ln2Lo
DATA expConst<>+16(SB)/4, $0x39506967 // 1.9875691500e-4
DATA expConst<>+20(SB)/4, $0x3ab743ce // 1.3981999507e-3
DATA expConst<>+24(SB)/4, $0x3c088908 // 8.3334519073e-3
DATA expConst<>+28(SB)/4, $0x3d2aa9c1 // 4.1665795894e-2
DATA expConst<>+32(SB)/4, $0x3e2aaaaa // 1.6666665459e-1
DATA expConst<>+36(SB)/4, $0x3f000000 // 5.0000001201e-1
DATA expConst<>+40(SB)/4, $0x3f800000 // 1
DATA expConst<>+44(SB)/4, $127
DATA expConst<>+48(SB)/4, $0xc2ae0000 // -87
DATA expConst<>+52(SB)/4, $0x42b00000 // 88
DATA expConst<>+56(SB)/4, $0x7f800000 // +Inf
GLOBL expConst<>(SB), RODATA|NOPTR, $60

// func exp8(x *float32, blocks int)
TEXT ·exp8(SB), NOSPLIT, $0-16
	MOVQ x+0(FP), DI
	MOVQ blocks+8(FP), CX
	VBROADCASTSS expConst<>+0(SB), Y15
	VBROADCASTSS expConst<>+4(SB), Y14
	VBROADCASTSS expConst<>+8(SB), Y13
	VBROADCASTSS expConst<>+12(SB), Y12
	VBROADCASTSS expConst<>+16(SB), Y11
	VBROADCASTSS expConst<>+20(SB), Y10
	VBROADCASTSS expConst<>+24(SB), Y9
	VBROADCASTSS expConst<>+28(SB), Y8
	VBROADCASTSS expConst<>+32(SB), Y7
	VBROADCASTSS expConst<>+36(SB), Y6
	VBROADCASTSS expConst<>+40(SB), Y5

loop:
	VMOVUPS (DI), Y0
	VMULPS  Y15, Y0, Y1 // t = x·log2e + round
	VADDPS  Y14, Y1, Y1
	VSUBPS  Y14, Y1, Y2 // n = t − round
	VMULPS  Y13, Y2, Y3 // r = x − n·ln2Hi − n·ln2Lo
	VSUBPS  Y3, Y0, Y3
	VMULPS  Y12, Y2, Y4
	VSUBPS  Y4, Y3, Y3
	VMULPS  Y11, Y3, Y2 // the polynomial
	VADDPS  Y10, Y2, Y2
	VMULPS  Y3, Y2, Y2
	VADDPS  Y9, Y2, Y2
	VMULPS  Y3, Y2, Y2
	VADDPS  Y8, Y2, Y2
	VMULPS  Y3, Y2, Y2
	VADDPS  Y7, Y2, Y2
	VMULPS  Y3, Y2, Y2
	VADDPS  Y6, Y2, Y2
	VMULPS  Y3, Y2, Y2
	VMULPS  Y3, Y2, Y2
	VADDPS  Y3, Y2, Y2
	VADDPS  Y5, Y2, Y2
	VBROADCASTSS expConst<>+44(SB), Y4 // times 2ⁿ
	VPADDD  Y4, Y1, Y1
	VPSLLD  $23, Y1, Y1
	VMULPS  Y1, Y2, Y2
	VBROADCASTSS expConst<>+48(SB), Y4
	VCMPPS  $1, Y4, Y0, Y3 // x < −87: 0
	VANDNPS Y2, Y3, Y2
	VBROADCASTSS expConst<>+52(SB), Y4
	VCMPPS  $1, Y0, Y4, Y3 // 88 < x: +Inf
	VBROADCASTSS expConst<>+56(SB), Y4
	VBLENDVPS Y3, Y4, Y2, Y2
	VMOVUPS Y2, (DI)
	ADDQ $32, DI
	DECQ CX
	JNZ  loop
	VZEROUPPER
	RET
