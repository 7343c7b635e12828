package tooluse

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func open(t testing.TB, change func(*Config)) *ToolUse {
	t.Helper()
	cfg := Defaults()
	change(&cfg)
	u, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func calls(pairs ...string) env.Message {
	var m env.Message
	for i := 0; i < len(pairs); i += 2 {
		m.ToolCalls = append(m.ToolCalls, env.ToolCall{ID: strconv.Itoa(i), Name: pairs[i], Arguments: pairs[i+1]})
	}
	return m
}

var asks = regexp.MustCompile(`order (\d+) of the (\w+) (\w+)|cancel my order of the (\w+) (\w+)|send everything to (\w+) by (\w+) delivery`)

// reference looks products and orders up, does what the request says, and says that it is done.
func reference(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	request := conversation[1].Content
	switch len(conversation) {
	case 2:
		return calls("SearchProducts", "{}", "ListOrders", `{"status":"open"}`)
	case 5:
	default:
		return env.Assistant("Done.")
	}
	var s shop
	_ = json.Unmarshal([]byte(conversation[3].Content), &s.Products)
	_ = json.Unmarshal([]byte(conversation[4].Content), &s.Orders)
	find := func(colour, kind string) product {
		for _, p := range s.Products {
			if p.Colour == colour && p.Kind == kind {
				return p
			}
		}
		p, _ := s.cheapest(kind)
		return p
	}
	var reply env.Message
	for i, ask := range asks.FindAllStringSubmatch(request, -1) {
		g := goal{Do: "deliver", City: ask[6], Delivery: ask[7]}
		switch {
		case ask[1] != "":
			n, _ := strconv.Atoi(ask[1])
			g = goal{Do: "buy", Product: find(ask[2], ask[3]).ID, Quantity: n}
		case ask[4] != "":
			g = goal{Do: "cancel", Product: find(ask[4], ask[5]).ID}
		}
		name, args := g.call(&s)
		reply.ToolCalls = append(reply.ToolCalls, env.ToolCall{ID: strconv.Itoa(i), Name: name, Arguments: args})
	}
	return reply
}

// random makes five random calls, then ends.
func random(rng *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	if len(conversation) > 2 {
		return env.Assistant("Done.")
	}
	var m env.Message
	for range randomCalls {
		m.ToolCalls = append(m.ToolCalls, []env.ToolCall{
			{Name: "PlaceOrder", Arguments: fmt.Sprintf(`{"product":"P%d","quantity":%d}`, 1+rng.IntN(16), 1+rng.IntN(3))},
			{Name: "CancelOrder", Arguments: fmt.Sprintf(`{"order":"O%d"}`, 1+rng.IntN(4))},
			{Name: "SetDelivery", Arguments: fmt.Sprintf(`{"city":%q,"express":%v}`, cities[rng.IntN(len(cities))], rng.IntN(2) == 0)},
		}[rng.IntN(3)])
	}
	return m
}

func TestConformance(t *testing.T) { envtest.Run(t, open(t, func(*Config) {}), random, reference) }

func TestTable(t *testing.T) {
	u := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`tool-use`", u, u.Info().Eval, reference, random)
}

func TestPlayers(t *testing.T) {
	u := open(t, func(c *Config) { c.EvalTasks = 300 })
	got, err := envtest.Mean(context.Background(), u, env.Eval, 300, reference)
	if err != nil || math.Abs(got-1.2) > 1e-9 {
		t.Errorf("the reference player has %v, %v; want 1.2", got, err)
	}
	got, err = envtest.Mean(context.Background(), u, env.Eval, 300, random)
	if want := u.Baselines(env.Eval)["random"]; err != nil || math.Abs(got-want) > 0.02 || got > 0.1 {
		t.Errorf("the random player has %v, %v; baseline %v", got, err, want)
	}
	got, err = envtest.Mean(context.Background(), u, env.Eval, 300, envtest.OneOf("Done."))
	if err != nil || got != 0 {
		t.Errorf("a player that does nothing has %v, %v", got, err)
	}
}

func TestTasks(t *testing.T) {
	u := open(t, func(c *Config) { c.MinGoals, c.MaxGoals = 2, 4 })
	seen := map[string]int{}
	for i := range 300 {
		made, err := u.draw(env.Train, i)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(made.Goals); n < 2 || n > 4 || len(asks.FindAllString(made.Request, -1)) != n {
			t.Errorf("%d goals: %s", n, made.Request)
		}
		for _, g := range made.Goals {
			seen[g.Do]++
		}
		for _, p := range made.Shop.Products {
			if p.Stock < 0 || p.Price < 1 {
				t.Errorf("%+v", p)
			}
		}
	}
	for _, do := range []string{"buy", "cheapest", "cancel", "deliver"} {
		if seen[do] < 50 {
			t.Errorf("%s: %d times in 300 tasks", do, seen[do])
		}
	}
}

const small = `{"request":"?","goals":[{"do":"buy","product":"P1","quantity":2},{"do":"cancel","product":"P2"},{"do":"deliver","city":"Oslo","delivery":"express"}],
	"shop":{"balance":20,"city":"Lima","delivery":"standard",
	"products":[{"id":"P1","kind":"mug","colour":"red","price":5,"stock":3},{"id":"P2","kind":"hat","colour":"blue","price":7,"stock":0}],
	"orders":[{"id":"O1","product":"P2","quantity":1,"status":"open"},{"id":"O2","product":"P2","quantity":1,"status":"shipped"}]}}`

func TestTools(t *testing.T) {
	u := open(t, func(*Config) {})
	e, err := u.Start(t.Context(), json.RawMessage(small), 0)
	if err != nil {
		t.Fatal(err)
	}
	if tools, err := env.Tools(e); len(tools) != 6 || err != nil {
		t.Fatalf("%d tools: %v, %v", len(tools), tools, err)
	}
	for i, step := range []struct{ name, args, want string }{
		{"SearchProducts", `{"kind":"mug","max_price":5}`, `[{"id":"P1","kind":"mug","colour":"red","price":5,"stock":3}]`},
		{"SearchProducts", `{"colour":"red","max_price":4}`, `[]`},
		{"ListOrders", `{"status":"shipped"}`, `[{"id":"O2","product":"P2","quantity":1,"status":"shipped"}]`},
		{"ListOrders", `{"status":"lost"}`, "error: arguments"},
		{"ShowAccount", `{}`, `{"balance":20,"city":"Lima","delivery":"standard"}`},
		{"PlaceOrder", `{"product":"P9","quantity":1}`, "error: there is no product"},
		{"PlaceOrder", `{"product":"P1","quantity":0}`, "error: quantity 0"},
		{"PlaceOrder", `{"product":"P1","quantity":4}`, "error: only 3"},
		{"PlaceOrder", `{"product":"P1","quantity":9223372036854775807}`, "error: only 3"},
		{"PlaceOrder", `{"product":"P1","quantity":"2"}`, "error: arguments"},
		{"PlaceOrder", `{"product":"P1"}`, "error: arguments"},
		{"Bye", `{}`, "error: there is no tool"},
		{"PlaceOrder", `{"product":"P1","quantity":3}`, `{"id":"O3","product":"P1","quantity":3,"status":"open"}`},
		{"CancelOrder", `{"order":"O3"}`, "cancelled"}, // a mistake that is made good
		{"CancelOrder", `{"order":"O3"}`, "error: order O3 is cancelled"},
		{"CancelOrder", `{"order":"O2"}`, "error: order O2 is shipped"},
		{"CancelOrder", `{"order":"O9"}`, "error: there is no order"},
		{"PlaceOrder", `{"product":"P1","quantity":2}`, `{"id":"O4","product":"P1","quantity":2,"status":"open"}`},
		{"PlaceOrder", `{"product":"P2","quantity":1}`, "error: only 0"},
		{"CancelOrder", `{"order":"O1"}`, "cancelled"},
		{"SetDelivery", `{"city":"Oslo","express":true}`, "orders go to Oslo by express delivery"},
		{"ShowAccount", `{}`, `{"balance":17,"city":"Oslo","delivery":"express"}`},
	} {
		m, err := env.Call(t.Context(), e, env.ToolCall{Name: step.name, Arguments: step.args})
		if err != nil || !strings.HasPrefix(m.Content, step.want) {
			t.Errorf("step %d, %s%s: %q %v; want %q", i, step.name, step.args, m.Content, err, step.want)
		}
	}
}

func TestScore(t *testing.T) {
	buy, cancel, deliver := []string{"PlaceOrder", `{"product":"P1","quantity":2}`}, []string{"CancelOrder", `{"order":"O1"}`}, []string{"SetDelivery", `{"city":"Oslo","express":true}`}
	for name, test := range map[string]struct {
		calls        [][]string
		state, goals float64
		stop         string
	}{
		"all":          {[][]string{buy, cancel, deliver}, 1, 1, "right"},
		"other order":  {[][]string{deliver, cancel, buy}, 1, 1, "right"},
		"two halves":   {[][]string{deliver, cancel, {"PlaceOrder", `{"product":"P1","quantity":1}`}, {"PlaceOrder", `{"product":"P1","quantity":1}`}}, 1, 1, "right"},
		"one missing":  {[][]string{buy, deliver}, 0, 2. / 3, "wrong"},
		"one too many": {[][]string{buy, cancel, deliver, {"PlaceOrder", `{"product":"P2","quantity":1}`}}, 0, 2. / 3, "wrong"},
		"too much":     {[][]string{cancel, deliver, {"PlaceOrder", `{"product":"P1","quantity":3}`}}, 0, 2. / 3, "wrong"},
		"slow":         {[][]string{cancel, {"SetDelivery", `{"city":"Oslo","express":false}`}}, 0, 1. / 3, "wrong"},
		"not express":  {[][]string{buy, cancel, {"SetDelivery", `{"city":"Oslo","express":false}`}}, 0, 2. / 3, "wrong"},
		"nothing":      {nil, 0, 0, "wrong"},
	} {
		u := open(t, func(*Config) {})
		turn := 0
		r, err := envtest.Play(t.Context(), u, json.RawMessage(small), 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message {
			if turn++; turn > len(test.calls) {
				return env.Assistant("Done.")
			}
			return calls(test.calls[turn-1]...)
		})
		if err != nil {
			t.Fatal(err)
		}
		state, goals := *r.Score.Rewards["state"].Value, *r.Score.Rewards["goals"].Value
		if state != test.state || math.Abs(goals-test.goals) > 1e-9 || r.Score.Stop != test.stop {
			t.Errorf("%s: state %v, goals %v, %s; want %v, %v, %s", name, state, goals, r.Score.Stop, test.state, test.goals, test.stop)
		}
	}
}

// A policy that only calls is stopped by the number of calls, however many it makes at once, and by the number of replies.
func TestLimits(t *testing.T) {
	u := open(t, func(c *Config) { c.Turns, c.MaxCalls = 3, 5 })
	many := calls(strings.Split(strings.Repeat("ShowAccount,{},", 20), ",")[:40]...)
	r, err := envtest.Play(t.Context(), u, json.RawMessage(small), 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message { return many })
	if err != nil || r.Score.Metrics["calls"] != 5 || r.Score.Stop != "max_calls" {
		t.Errorf("%+v, %v", r.Score, err)
	}
	r, err = envtest.Play(t.Context(), u, json.RawMessage(small), 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message { return calls("Bye", "") })
	if err != nil || len(r.Messages) != 2+3*2 || r.Score.Stop != "max_turns" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestBadTasks(t *testing.T) {
	u := open(t, func(*Config) {})
	for want, data := range map[string]string{
		"want a request": `{"goals":[{"do":"deliver"}]}`,
		"no goal":        `{"request":"?","goals":[{"do":"steal"}]}`,
		"no product":     `{"request":"?","goals":[{"do":"buy","product":"P1","quantity":1}]}`,
		"of no product":  `{"request":"?","goals":[{"do":"deliver"}],"shop":{"orders":[{"id":"O1","product":"P1"}]}}`,
		"no open order":  `{"request":"?","goals":[{"do":"cancel","product":"P1"}]}`,
	} {
		if _, err := u.Start(t.Context(), []byte(data), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", data, err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"min_goals":    func(c *Config) { c.MinGoals = 4 },
		"max_goals":    func(c *Config) { c.MaxGoals = 5 },
		"products":     func(c *Config) { c.Products = 61 },
		"turns":        func(c *Config) { c.Turns = 1 },
		"max_calls":    func(c *Config) { c.MaxCalls = 11 },
		"eval_tasks":   func(c *Config) { c.EvalTasks = 0 },
		"eval_percent": func(c *Config) { c.EvalPercent = 51 },
		"weights":      func(c *Config) { c.Weights.Goals = -1 },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("wrong %s: %v", option, err)
		}
	}
}

func TestDemonstration(t *testing.T) {
	u := open(t, func(*Config) {})
	text, err := u.Demonstrate([]byte(small), 0)
	if want := `PlaceOrder{"product":"P1","quantity":2} CancelOrder{"order":"O1"} SetDelivery{"city":"Oslo","express":true}`; text != want || err != nil {
		t.Errorf("%q %v", text, err)
	}
}

func FuzzCall(f *testing.F) {
	f.Add("PlaceOrder", `{"product":"P1","quantity":-1}`)
	f.Add("SetDelivery", `{"city":"\u0000","express":true}`)
	u := open(f, func(*Config) {})
	f.Fuzz(func(t *testing.T, name, args string) {
		first := true
		_, err := envtest.Play(context.Background(), u, json.RawMessage(small), 0, func(*rand.Rand, []env.Message, []env.Tool) env.Message {
			if first {
				first = false
				return calls(name, args)
			}
			return env.Assistant("")
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
