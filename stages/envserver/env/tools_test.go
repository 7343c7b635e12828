package env

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

type point struct {
	X int `json:"x"`
	Y int `json:"y,omitempty"`
}

type drawArgs struct {
	_      struct{}       `tool:"Draw a line."`
	From   point          `json:"from" jsonschema:"where it begins"`
	To     []point        `json:"to,omitempty"`
	Colour string         `json:"colour" enum:"red, blue"`
	Width  *float64       `json:"width,omitempty"`
	Tags   map[string]int `json:"tags,omitempty"`
	Small  int8           `json:"small,omitempty"`
	hidden int
}

// drawing has two tools, and methods that look a little like tools.
type drawing struct {
	scripted
	last drawArgs
}

func (d *drawing) Draw(_ context.Context, args drawArgs) (string, error) {
	d.last = args
	return "drawn", nil
}
func (d *drawing) Wait(ctx context.Context, _ struct{}) (string, error) { return "waited", ctx.Err() }

func (d *drawing) NoContext(drawArgs) (string, error)                    { panic("no tool") }
func (d *drawing) NoStruct(context.Context, string) (string, error)      { panic("no tool") }
func (d *drawing) Pointer(context.Context, *drawArgs) (string, error)    { panic("no tool") }
func (d *drawing) Variadic(context.Context, ...drawArgs) (string, error) { panic("no tool") }
func (d *drawing) OtherResult(context.Context, drawArgs) (int, error)    { panic("no tool") }
func (d *drawing) NoError(context.Context, drawArgs) string              { panic("no tool") }

func TestToolsAreFound(t *testing.T) {
	tools, err := Tools(&drawing{})
	if err != nil || len(tools) != 2 || tools[0].Name != "Draw" || tools[1].Name != "Wait" {
		t.Fatalf("%+v, %v", tools, err)
	}
	if tools[0].Description != "Draw a line." {
		t.Errorf("description %q", tools[0].Description)
	}
	var schema struct {
		Type       string
		Required   []string
		Properties map[string]struct {
			Description string
			Enum        []string
			Required    []string
		}
		AdditionalProperties any
	}
	if err := json.Unmarshal(tools[0].Schema, &schema); err != nil {
		t.Fatal(err)
	}
	if schema.Type != "object" || strings.Join(schema.Required, " ") != "from colour" || len(schema.Properties) != 6 {
		t.Errorf("schema %s", tools[0].Schema)
	}
	if p := schema.Properties["from"]; p.Description != "where it begins" || strings.Join(p.Required, " ") != "x" {
		t.Errorf("property from: %+v", p)
	}
	if got := schema.Properties["colour"].Enum; strings.Join(got, " ") != "red blue" {
		t.Errorf("enum %q", got)
	}
	if !strings.Contains(string(tools[0].Schema), `"additionalProperties":false`) {
		t.Errorf("additional properties are allowed: %s", tools[0].Schema)
	}
	again, _ := Tools(&drawing{})
	again[0].Name = "changed"
	if third, _ := Tools(&drawing{}); third[0].Name != "Draw" {
		t.Error("the list is shared")
	}
}

func TestCall(t *testing.T) {
	const ok = ""
	for _, test := range []struct{ name, args, want string }{
		{"Draw", `{"from":{"x":1},"colour":"red"}`, ok},
		{"Draw", ` {"from":{"x":1,"y":-2},"to":[{"x":3}],"colour":"blue","width":0.5,"tags":{"a":1}} `, ok},
		{"Draw", `{"from":{"x":1},"colour":"red","width":null}`, ok},
		{"Wait", `{}`, ok},
		{"draw", `{}`, `there is no tool "draw"; there are: Draw, Wait`},
		{"", `{}`, "there is no tool"},
		{"NoContext", `{}`, "there is no tool"},
		{"Reply", `{}`, "there is no tool"},
		{"Draw", ``, "not JSON"},
		{"Draw", `{`, "not JSON"},
		{"Draw", `{} {}`, "not JSON"},
		{"Draw", "{\"colour\":\"\xff\"}", "UTF-8"},
		{"Draw", `null`, "not a JSON object"},
		{"Draw", `[]`, "not a JSON object"},
		{"Draw", `"{}"`, "not a JSON object"},
		{"Draw", `{"colour":"red"}`, "from"},
		{"Draw", `{"from":{"x":1},"colour":"red","color":"red"}`, "color"},
		{"Draw", `{"from":{"x":1},"Colour":"red"}`, "Colour"},
		{"Draw", `{"from":{"x":1},"colour":"red","hidden":1}`, "hidden"},
		{"Draw", `{"from":{"x":1},"colour":"red","_":{}}`, `"_"`},
		{"Draw", `{"from":{"x":"1"},"colour":"red"}`, "integer"},
		{"Draw", `{"from":{"x":1.5},"colour":"red"}`, "integer"},
		{"Draw", `{"from":{"x":1e30},"colour":"red"}`, "x"},
		{"Draw", `{"from":{"x":1},"colour":"red","small":300}`, "small"},
		{"Draw", `{"from":{"x":1},"colour":"green"}`, "enum"},
		{"Draw", `{"from":{"x":1,"z":1},"colour":"red"}`, "z"},
		{"Draw", `{"from":{"x":1},"to":{"x":1},"colour":"red"}`, "array"},
		{"Draw", `{"from":{"x":1},"colour":"red","colour":"blue"}`, `"colour" is given twice`},
		{"Draw", `{"from":{"x":1,"x":2},"colour":"red"}`, `"x" is given twice`},
		{"Draw", `{"from":{"x":1},"to":[{"x":1},{"x":1,"x":1}],"colour":"red"}`, `"x" is given twice`},
		{"Draw", strings.Repeat("[", 1e5), "nested more than 64 deep"},
		{"Wait", `{"seconds":1}`, "seconds"},
	} {
		m, err := Call(context.Background(), &drawing{}, ToolCall{ID: "7", Name: test.name, Arguments: test.args})
		if err != nil {
			t.Errorf("%s(%.80s): %v", test.name, test.args, err)
			continue
		}
		if m.Role != RoleTool || m.ToolCallID != "7" {
			t.Errorf("%s(%.80s): %+v", test.name, test.args, m)
		}
		if refused := strings.HasPrefix(m.Content, "error: "); refused != (test.want != ok) || !strings.Contains(m.Content, test.want) {
			t.Errorf("%s(%.80s): %q, want %q", test.name, test.args, m.Content, test.want)
		}
	}
}

func TestArgumentsArrive(t *testing.T) {
	d := &drawing{}
	_, err := Call(context.Background(), d, ToolCall{Name: "Draw", Arguments: `{"from":{"x":1,"y":2},"to":[{"x":3}],"colour":"blue","width":0.5}`})
	if err != nil || d.last.From != (point{1, 2}) || d.last.To[0].X != 3 || d.last.Colour != "blue" || *d.last.Width != 0.5 || d.last.hidden != 0 {
		t.Errorf("%+v, %v", d.last, err)
	}
}

// failing has tools that fail in every way.
type failing struct{ scripted }

func (failing) Refuse(context.Context, struct{}) (string, error) {
	return "ignored", errors.Join(Refuse("not %s", "now"))
}
func (failing) Fail(context.Context, struct{}) (string, error) { return "", errors.New("no disk") }
func (failing) Panic(context.Context, struct{}) (string, error) {
	panic("boom")
}

func TestFailuresOfTools(t *testing.T) {
	call := func(name string) (Message, error) {
		return Call(context.Background(), &failing{}, ToolCall{Name: name, Arguments: `{}`})
	}
	if m, err := call("Refuse"); err != nil || m.Content != "error: not now" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := call("Fail"); err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Error(err)
	}
	var p *PanicError
	if _, err := call("Panic"); !errors.As(err, &p) || !strings.Contains(p.Stack, "failing") {
		t.Error(err)
	}
}

type unknowable struct{ scripted }

func (unknowable) Tool(context.Context, struct{ C chan int }) (string, error) { return "", nil }

type enumOfInt struct{ scripted }

func (enumOfInt) Tool(context.Context, struct {
	N int `enum:"1,2"`
}) (string, error) {
	return "", nil
}

func TestToolsThatCannotBe(t *testing.T) {
	for _, e := range []Episode{&unknowable{}, &enumOfInt{}, nil} {
		if tools, err := Tools(e); err == nil {
			t.Errorf("%T: %+v", e, tools)
		}
	}
}

// Whatever the arguments are: an answer, no error, and the tool runs only on what its schema allows, unchanged.
func FuzzCall(f *testing.F) {
	f.Add("Draw", `{"from":{"x":1},"colour":"red"}`)
	f.Add("Draw", `{"from":{"x":1},"colour":"red","tags":{"a":1,"a":2}}`)
	f.Add("Wait", `{}`)
	f.Fuzz(func(t *testing.T, name, args string) {
		d := &drawing{}
		m, err := Call(context.Background(), d, ToolCall{Name: name, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		if m.Content == "drawn" && d.last.Colour != "red" && d.last.Colour != "blue" {
			t.Fatalf("ran on %q", args)
		}
		if m.Content != "drawn" && d.last.Colour != "" {
			t.Fatalf("refused, yet ran on %q", args)
		}
	})
}
