package twoplayer

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t testing.TB, change func(*Config)) *TwoPlayer {
	t.Helper()
	cfg := Defaults()
	change(&cfg)
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// seen reads off an agent's conversation what there is and is worth, what the other's last offer leaves, and how often it spoke.
func seen(conversation []env.Message) (items, values pile, left *pile, spoken int) {
	for _, m := range conversation {
		var p, q pile
		switch {
		case m.Role == env.RoleAssistant:
			spoken++
		case m.Role == env.RoleSystem:
			fmt.Sscanf(m.Content, "%d %d %d worth %d %d %d", &items[0], &items[1], &items[2], &values[0], &values[1], &values[2])
		default:
			if n, _ := fmt.Sscanf(m.Content, "%d %d %d", &p[0], &p[1], &p[2]); n == kinds {
				q = p
				left = &q
			} else {
				left = nil
			}
		}
	}
	return items, values, left, spoken
}

// reference keeps the fewest items that are worth what it asks for, which is less every time, and takes as much.
func reference(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	items, values, left, spoken := seen(conversation)
	want := 7 - spoken
	if left != nil && left.worth(values) >= want {
		return env.Assistant("deal")
	}
	keep, fewest := items, math.Inf(1)
	for _, p := range legal(task{Items: items}) {
		if n := float64(p[0]+p[1]+p[2]) + float64(p.worth(values))/100; p.worth(values) >= want && n < fewest {
			keep, fewest = p, n
		}
	}
	return env.Assistant(keep.String())
}

func random(rng *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	items, _, left, _ := seen(conversation)
	moves := legal(task{Items: items})
	n := len(moves)
	if left != nil {
		n++
	}
	if i := rng.IntN(n); i < len(moves) {
		return env.Assistant(moves[i].String())
	}
	return env.Assistant("deal")
}

func TestConformance(t *testing.T) {
	t.Run("compact", func(t *testing.T) { envtest.Run(t, open(t, func(*Config) {}), random, reference) })
	t.Run("full", func(t *testing.T) {
		envtest.Run(t, open(t, func(c *Config) { c.Prompt = "full" }), envtest.OneOf("I want all! <keep>1 1 1</keep>", "fine <deal/>", "<keep>9 9 9</keep>"))
	})
}

func TestTable(t *testing.T) {
	p := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`two-player`", p, p.Info().Eval, reference, random)
}

func TestBaselines(t *testing.T) {
	p := open(t, func(*Config) {})
	got, err := envtest.Mean(t.Context(), p, env.Eval, 256, random)
	if want := p.Baselines(env.Eval)["random"]; err != nil || math.Abs(got-want) > 0.04 {
		t.Errorf("random players get %v, %v; the baseline is %v", got, err, want)
	}
}

// Games by hand: what is said in turns, and what comes of it.
func TestRules(t *testing.T) {
	const small = `{"items":[3,1,2],"first":[1,3,2],"second":[2,0,2]}`
	for _, test := range []struct {
		name          string
		said          []string
		shown         []string // the last message before each reply
		first, second float64
		welfare       float64
		stop          string
	}{
		// The first keeps a 1, b 1 and c 0 (worth 4), the second gets 2 and 2 (worth 8); together 13 are possible.
		{"taken at once", []string{"1 1 0", "deal"}, []string{"-", "2 0 2"}, 0.4, 0.8, 12. / 13, "deal"},
		{"a counter-offer", []string{"3 1 2", "3 0 2", "Deal "}, []string{"-", "0 0 0", "0 1 0"}, 0.3, 1, 1, "deal"},
		{"nothing to take", []string{"deal", "0 0 0", "deal"}, []string{"-", "-", "3 1 2"}, 1, 0, 10. / 13, "deal"},
		{"nonsense takes the offer away", []string{"0 0 0", "hm", "deal", "1 0 0", "4 0 0", "deal"}, []string{"-", "3 1 2", "-", "-", "2 1 2", "-"}, 0, 0, 0, "no deal"},
		{"no deal", []string{"3 1 2", "3 1 2", "3 1 2", "3 1 2", "3 1 2", "3 1 2"}, nil, 0, 0, 0, "no deal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var shown []string
			i := 0
			r, err := envtest.Play(t.Context(), open(t, func(*Config) {}), []byte(small), 0, func(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
				for _, m := range conversation {
					if m.Agent != []string{first, second}[i%2] {
						t.Errorf("reply %d sees %+v", i, m)
					}
				}
				shown = append(shown, conversation[len(conversation)-1].Content)
				i++
				return env.Assistant(test.said[i-1])
			})
			if err != nil {
				t.Fatal(err)
			}
			if test.shown != nil && fmt.Sprint(shown) != fmt.Sprint(test.shown) {
				t.Errorf("shown %q, want %q", shown, test.shown)
			}
			s := r.Score
			if *s.Agents[first].Total() != test.first || *s.Agents[second].Total() != test.second || *s.Rewards.Total() != test.welfare || s.Stop != test.stop {
				t.Errorf("%v and %v, together %v, %q", *s.Agents[first].Total(), *s.Agents[second].Total(), *s.Rewards.Total(), s.Stop)
			}
		})
	}
}

// No agent sees what the items are worth to the other.
func TestValuesArePrivate(t *testing.T) {
	for _, prompt := range []string{"compact", "full"} {
		e := &episode{cfg: Config{Prompt: prompt, Replies: 6}, task: task{Items: pile{3, 1, 2}, First: pile{11, 13, 17}, Second: pile{19, 23, 29}}}
		ones, others := e.PromptOf(first)[0].Content, e.PromptOf(second)[0].Content
		for _, v := range []string{"11", "13", "17"} {
			if !strings.Contains(ones, v) || strings.Contains(others, v) {
				t.Errorf("%s: %q and %q", prompt, ones, others)
			}
		}
		if strings.Contains(ones, "29") || !strings.Contains(others, "29") {
			t.Errorf("%s: %q and %q", prompt, ones, others)
		}
	}
}

func TestFullReplies(t *testing.T) {
	e := &episode{cfg: Config{Prompt: "full", Replies: 6}, task: task{Items: pile{3, 1, 2}, First: pile{1, 3, 2}, Second: pile{2, 0, 2}}}
	for reply, want := range map[string]string{
		"I like books. <keep>0 1 0</keep>":          "0 1 0",
		"<keep>3 1 2</keep> no, <keep>1 0 1</keep>": "1 0 1",
		"<deal/> or rather <keep> 1  1 1 </keep>":   "1 1 1",
		"<keep>0 1 0</keep> well, <deal/>":          "deal",
		"<keep>4 0 0</keep>":                        "nothing",
		"<keep>1 0</keep>":                          "nothing",
		"deal":                                      "nothing",
		"1 1 1":                                     "nothing",
	} {
		got := "nothing"
		switch offer, deal := e.read(reply); {
		case deal:
			got = "deal"
		case offer != nil:
			got = offer.String()
		}
		if got != want {
			t.Errorf("%q is read as %s, want %s", reply, got, want)
		}
	}
}

func TestTasks(t *testing.T) {
	p := open(t, func(*Config) {})
	kindsOfTasks := map[string]int{}
	for i := range 1024 {
		task, err := p.draw(env.Train, i)
		if err != nil {
			t.Fatal(err)
		}
		n := task.Items[0] + task.Items[1] + task.Items[2]
		if n < 5 || n > 7 || task.Items.worth(task.First) != whole || task.Items.worth(task.Second) != whole || task.best() <= whole {
			t.Fatalf("task %d: %+v", i, task)
		}
		kindsOfTasks[fmt.Sprint(task)]++
	}
	if len(kindsOfTasks) < 700 {
		t.Errorf("%d different tasks of 1024", len(kindsOfTasks))
	}
}

func TestBadConfigAndTasks(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"replies":      func(c *Config) { c.Replies = 1 },
		"train_tasks":  func(c *Config) { c.TrainTasks = 0 },
		"eval_percent": func(c *Config) { c.EvalPercent = 51 },
		"prompt":       func(c *Config) { c.Prompt = "long" },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	p := open(t, func(*Config) {})
	for _, bad := range []string{`{}`, `{"items":[0,1,1],"first":[1,1,1],"second":[1,1,1]}`, `{"items":[1,1,1],"first":[1,1,-1],"second":[1,1,2]}`,
		`{"items":[1,1,1],"first":[0,0,0],"second":[1,1,1]}`, `{"items":[1,1,1],"first":[1,1,0],"second":[1,1,0]}`, `{"items":[2000,1,1],"first":[1,1,1],"second":[1,1,1]}`} {
		if _, err := p.Start(t.Context(), []byte(bad), 0); err == nil {
			t.Errorf("task %s is played", bad)
		}
	}
	if got := maps.Collect(maps.All(p.Baselines("nowhere"))); len(got) != 0 {
		t.Errorf("baselines of no split: %v", got)
	}
}
