package try

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Play is an environment that a person plays.
type Play struct {
	Env   env.Environment
	Tasks Tasks
	// EnvTimeout is how long one call of the environment may take.
	EnvTimeout time.Duration
	// Echo repeats what is read: where nobody types, so that the output reads like a conversation.
	Echo bool
}

// Run plays task after task until in ends, /quit is read or ctx ends, none of which is an error. One that is left in the
// middle is scored as it stands, unless nothing was said. An error is the environment's, or of in or out.
func (p Play) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	if err := p.Tasks.check(p.Env.Info()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pictures := &album{}
	defer pictures.remove()
	c := &console{Play: p, lines: readLines(ctx, in), printer: printer{out: out, place: pictures.add}}
	c.printf("%s\n", help)
	var totals []float64
	played := 0
	for i := 0; !c.quit; i++ {
		if err := c.episode(ctx, i, func(s env.Score) {
			played++
			if total := s.Rewards.Total(); total != nil {
				totals = append(totals, *total)
			}
		}); err != nil {
			if ctx.Err() != nil {
				break
			}
			if s := traceback(err); s != "" {
				c.printf("\n%s\n", s)
			}
			return err
		}
	}
	if played > 1 && len(totals) > 0 {
		c.printf("\n%d tasks, mean reward %s\n", played, number(newFigure(totals).mean))
	}
	c.printf("\n")
	return c.err
}

const help = `A line is a reply. A line with a slash is a command:
  /text              begins a reply of several lines; a line with a single . ends it
  /NAME arg=value …  calls a tool, as /tool NAME {"arg": "value"} does; /tools shows them with their schemas
  /task              shows the task's JSON, with the answer where it has one
  /next              scores what there is and goes on to the next task
  /quit              scores what there is and ends, as the end of the input does
  /help              this; //… is a reply that begins with a slash`

// A console is one person's terminal.
type console struct {
	Play
	printer
	lines <-chan line
	quit  bool
	told  []env.Tool // that were shown last
}

// errNext says that the person wants no more of an episode.
var errNext = errors.New("the next task is wanted")

func (c *console) episode(ctx context.Context, i int, scored func(env.Score)) (err error) {
	g, err := c.Tasks.game(c.Env, i)
	if err != nil {
		return err
	}
	s, err := limited(ctx, c.EnvTimeout, func(ctx context.Context) (*env.Session, error) { return env.Begin(ctx, c.Env, g.task, g.seed) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	info := c.Env.Info()
	c.printf("\n── %s %s: %s ──\n", info.Name, info.Version, g)
	c.agent = ""
	if agents := s.Agents(); len(agents) > 0 {
		c.printf("You play %s, each with a view of its own.\n", strings.Join(agents, " and "))
	}
	c.messages(s.Prompt())
	if tools := s.Tools(); !reflect.DeepEqual(tools, c.told) {
		c.tools(tools)
		c.told = tools
	}
	left := false
	for done := false; !done; {
		reply, err := c.reply(ctx, g, s)
		if err == errNext {
			if c.quit && s.Turns() == 0 {
				return nil
			}
			left = true
			break
		}
		if err != nil {
			return err
		}
		turn, err := limited(ctx, c.EnvTimeout, func(ctx context.Context) (env.Turn, error) { return s.Reply(ctx, reply) })
		if err != nil {
			return err
		}
		c.messages(turn.Messages)
		if done = turn.Done; done && turn.Truncated {
			c.printf("(cut by a limit)\n")
		}
	}
	turns := s.Turns()
	score, err := limited(ctx, c.EnvTimeout, s.Score)
	if err != nil {
		return err
	}
	if left {
		score.Stop += " (left before its end)"
	}
	c.score(score, turns)
	c.labelled("task", short(string(g.task), longest))
	scored(score)
	return nil
}

// reply reads commands and answers them, until there is a reply of the policy. errNext ends the episode.
func (c *console) reply(ctx context.Context, g game, s *env.Session) (env.Message, error) {
	for {
		typed, ok, err := c.ask(ctx, c.agent+"> ")
		if err != nil {
			return env.Message{}, err
		}
		command, rest, _ := strings.Cut(strings.TrimLeft(typed, " \t"), " ")
		switch {
		case !ok || command == "/quit":
			c.quit = true
			return env.Message{}, errNext
		case command == "":
			c.printf("(nothing is said; an empty reply is /text and then a line with a single .)\n")
		case !strings.HasPrefix(command, "/"):
			return env.Assistant(typed), nil
		case strings.HasPrefix(command, "//"):
			return env.Assistant(strings.Replace(typed, "/", "", 1)), nil
		case command == "/next":
			return env.Message{}, errNext
		case command == "/help":
			c.printf("%s\n", help)
		case command == "/task":
			c.printf("%s\n", g.task)
		case command == "/tools":
			c.schemas(s.Tools())
		case command == "/text":
			text, ended, err := c.text(ctx)
			if err != nil {
				return env.Message{}, err
			}
			if !ended {
				c.quit = true
				return env.Message{}, errNext
			}
			return env.Assistant(text), nil
		default:
			name := strings.TrimPrefix(command, "/")
			if name == "tool" {
				name, rest, _ = strings.Cut(strings.TrimSpace(rest), " ")
			}
			tool, ok := findTool(s.Tools(), name)
			if !ok {
				c.printf("(there is no command or tool %q; /help shows the commands, /tools the tools)\n", name)
				continue
			}
			arguments, err := readSchema(tool).arguments(rest)
			if err != nil {
				c.printf("(not called: %v)\n", err)
				continue
			}
			call := env.ToolCall{ID: fmt.Sprintf("call_%d_0", s.Turns()), Name: tool.Name, Arguments: arguments}
			return env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{call}}, nil
		}
	}
}

// text reads lines up to one with a single dot; not ended if the input ends before.
func (c *console) text(ctx context.Context) (text string, ended bool, err error) {
	var lines []string
	for {
		typed, ok, err := c.ask(ctx, "… ")
		if err != nil || !ok {
			return "", false, err
		}
		if typed == "." {
			return strings.Join(lines, "\n"), true, nil
		}
		lines = append(lines, typed)
	}
}

// ask reads a line without its end; not ok at the end of the input.
func (c *console) ask(ctx context.Context, prompt string) (typed string, ok bool, err error) {
	c.printf("%s", prompt)
	select {
	case <-ctx.Done():
		return "", false, ctx.Err()
	case l, open := <-c.lines:
		if err := ctx.Err(); err != nil {
			return "", false, err
		}
		if l.err != nil {
			return "", false, fmt.Errorf("read what is typed: %w", l.err)
		}
		if c.Echo || !open {
			c.printf("%s\n", l.text)
		}
		return l.text, open, c.err
	}
}
