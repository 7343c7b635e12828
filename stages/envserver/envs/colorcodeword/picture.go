package colorcodeword

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// palette has the colours that a key may have, far enough from each other to be told apart.
var palette = []struct {
	name  string
	color color.NRGBA
}{
	{"red", color.NRGBA{220, 20, 30, 255}},
	{"blue", color.NRGBA{30, 60, 220, 255}},
	{"green", color.NRGBA{20, 150, 50, 255}},
	{"yellow", color.NRGBA{250, 220, 40, 255}},
	{"purple", color.NRGBA{130, 40, 160, 255}},
	{"orange", color.NRGBA{250, 130, 20, 255}},
	{"black", color.NRGBA{0, 0, 0, 255}},
	{"pink", color.NRGBA{250, 160, 190, 255}},
}

func colorOf(name string) (color.NRGBA, bool) {
	i := slices.IndexFunc(palette, func(p struct {
		name  string
		color color.NRGBA
	}) bool {
		return p.name == name
	})
	if i < 0 {
		return color.NRGBA{}, false
	}
	return palette[i].color, true
}

// picture is a row of squares with a white border of a quarter of a square's side around each.
func picture(squares []string, pixels int) (env.Image, error) {
	gap := pixels/4 + 1
	p := image.NewNRGBA(image.Rect(0, 0, len(squares)*(pixels+gap)+gap, pixels+2*gap))
	draw.Draw(p, p.Bounds(), image.White, image.Point{}, draw.Src)
	for i, name := range squares {
		c, _ := colorOf(name) // the task has been checked
		x := gap + i*(pixels+gap)
		draw.Draw(p, image.Rect(x, gap, x+pixels, gap+pixels), image.NewUniform(c), image.Point{}, draw.Src)
	}
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		return env.Image{}, fmt.Errorf("encode the picture: %w", err)
	}
	return env.Image{MIME: "image/png", Data: b.Bytes(), Alt: strings.Join(squares, " ")}, nil
}
