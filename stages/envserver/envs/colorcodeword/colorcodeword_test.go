package colorcodeword

import (
	"bytes"
	"image/png"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t testing.TB, change func(*Config)) *ColorCodeword {
	t.Helper()
	cfg := Defaults()
	change(&cfg)
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// look reads the colours off a picture: every run of pixels that are not white, in the middle row.
func look(i env.Image) (names []string) {
	p, err := png.Decode(bytes.NewReader(i.Data))
	if err != nil {
		return []string{err.Error()}
	}
	white := true
	for x := range p.Bounds().Dx() {
		name := ""
		for _, known := range palette {
			r, g, b, a := p.At(x, p.Bounds().Dy()/2).RGBA()
			kr, kg, kb, ka := known.color.RGBA()
			if r == kr && g == kg && b == kb && a == ka {
				name = known.name
			}
		}
		if white && name != "" {
			names = append(names, name)
		}
		white = name == ""
	}
	return names
}

// seen is the key, and the colours so far, of a compact conversation.
func seen(conversation []env.Message) (key map[string]string, colors []string) {
	key = map[string]string{}
	for _, pair := range strings.Fields(conversation[0].Content) {
		name, letter, _ := strings.Cut(pair, "=")
		key[name] = letter
	}
	for _, m := range conversation {
		for _, i := range m.Images {
			colors = append(colors, look(i)...)
		}
	}
	return key, colors
}

func reference(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	key, colors := seen(conversation)
	word := ""
	for _, c := range colors {
		word += key[c]
	}
	return env.Assistant(word)
}

func random(rng *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	key, colors := seen(conversation)
	var letters []string
	for _, l := range key {
		letters = append(letters, l)
	}
	slices.Sort(letters)
	word := ""
	for range colors {
		word += letters[rng.IntN(len(letters))]
	}
	return env.Assistant(word)
}

func TestConformance(t *testing.T) {
	t.Run("compact", func(t *testing.T) { envtest.Run(t, open(t, func(*Config) {}), random, reference) })
	t.Run("full", func(t *testing.T) {
		envtest.Run(t, open(t, func(c *Config) { c.Prompt, c.Pixels = "full", 3 }), envtest.OneOf("<codeword>AB</codeword>", "<codeword>"))
	})
}

func TestTable(t *testing.T) {
	c := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`color-codeword`", c, c.Info().Eval, reference, random)
}

// A task by hand: images of the colours in order, in pixels and in words.
func TestRules(t *testing.T) {
	const small = `{"key":{"red":"K","blue":"T","pink":"E"},"turns":[["blue","blue","red"],["pink"]]}`
	c := open(t, func(*Config) {})
	for _, test := range []struct {
		said  []string
		want  float64
		exact float64
	}{
		{[]string{"TTK", "TTKE"}, 1, 1},
		{[]string{" ttk\n", "TTK"}, (1 + 0.75) / 2, 0.5},
		{[]string{"TTKE", "E"}, 0.75 / 2, 0},
		{[]string{"", "TTKEEEEE"}, 0.5 / 2, 0},
		{[]string{"KTT", "ETTK"}, (1./3 + 0.25) / 2, 0},
	} {
		i := 0
		r, err := envtest.Play(t.Context(), c, []byte(small), 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message {
			i++
			return env.Assistant(test.said[i-1])
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := *r.Score.Rewards.Total(); math.Abs(got-test.want) > 1e-12 || r.Score.Metrics["exact"] != test.exact {
			t.Errorf("%q: %v, exact %v, want %v and %v", test.said, got, r.Score.Metrics["exact"], test.want, test.exact)
		}
		if m := r.Messages; m[0].Content != "blue=T pink=E red=K" || m[0].Images[0].Alt != "blue blue red" || m[2].Content != "" || m[2].Images[0].Alt != "pink" {
			t.Errorf("shown %+v", m)
		}
		if got := look(r.Messages[0].Images[0]); !slices.Equal(got, []string{"blue", "blue", "red"}) {
			t.Errorf("in the picture are %q", got)
		}
	}
}

// A model that reads only text can play: the alt text says what the picture shows.
func TestAltTextIsEnough(t *testing.T) {
	c := open(t, func(*Config) {})
	got, err := envtest.Mean(t.Context(), c, env.Eval, 64, func(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
		key, _ := seen(conversation)
		word := ""
		for _, m := range conversation {
			text, err := m.Text()
			if err != nil {
				t.Fatal(err)
			}
			if names, ok := strings.CutPrefix(text, "[image: "); ok {
				names, _, _ = strings.Cut(names, "]")
				for _, name := range strings.Fields(names) {
					word += key[name]
				}
			}
		}
		return env.Assistant(word)
	})
	if err != nil || got != 1 {
		t.Errorf("reading the words scores %v, %v", got, err)
	}
}

func TestFullReplies(t *testing.T) {
	e := &episode{cfg: Config{Prompt: "full"}}
	for reply, want := range map[string]string{
		"It is <codeword> abc </codeword>.":                   "ABC",
		"<codeword>AB</codeword> no, <codeword>BA</codeword>": "BA",
		"<codeword>AB": "",
		"AB":           "",
	} {
		if got := e.read(reply); got != want {
			t.Errorf("%q is read as %q, want %q", reply, got, want)
		}
	}
}

func TestBadConfigAndTasks(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"min_turns":   func(c *Config) { c.MinTurns = 4 },
		"max_turns":   func(c *Config) { c.MaxTurns = 17 },
		"max_squares": func(c *Config) { c.MaxSquares = 17 },
		"min_squares": func(c *Config) { c.MinSquares = 0 },
		"colors":      func(c *Config) { c.Colors = 9 },
		"pixels":      func(c *Config) { c.Pixels = 0 },
		"prompt":      func(c *Config) { c.Prompt = "" },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	c := open(t, func(*Config) {})
	for _, bad := range []string{`{}`, `{"key":{"red":"K"},"turns":[["blue"]]}`, `{"key":{"red":"KK"},"turns":[["red"]]}`, `{"key":{"mauve":"K"},"turns":[["mauve"]]}`,
		`{"key":{"red":"K"},"turns":[[]]}`, `{"key":{"red":"K"},"turns":[["red"],["red"],["red"],["red"]]}`} {
		if _, err := c.Start(t.Context(), []byte(bad), 0); err == nil {
			t.Errorf("task %s is played", bad)
		}
	}
}
