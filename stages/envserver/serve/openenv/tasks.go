package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// mostTasks is how many tasks one request tells.
const mostTasks = 10000

// taskArgs are those of all requests about tasks.
type taskArgs struct {
	Split *string `json:"split"`
	Index *int    `json:"index"`
	Start *int    `json:"start"`
	Stop  *int    `json:"stop"`
}

// badTask is a request for a task that there is not.
type badTask string

func (b badTask) Error() string { return string(b) }

// taskAPI is what tells of the tasks: their number, and the JSON of each. A reset plays the one of a split and an index.
func (s *Server) taskAPI(mux *http.ServeMux) {
	about := func(name string, f func(ctx context.Context, split env.Split, n int, args taskArgs) (any, error)) {
		mux.HandleFunc("POST /{env}/"+name, func(w http.ResponseWriter, r *http.Request) {
			if !s.named(w, r) {
				return
			}
			args, err := readTaskArgs(w, r)
			var reply any
			if err == nil {
				split := env.Split(*args.Split)
				reply, err = f(r.Context(), split, s.info.Tasks(split), args)
			}
			var bad *invalidError
			var none badTask
			switch {
			case errors.As(err, &bad):
				answer(w, http.StatusUnprocessableEntity, detail(bad.errors))
			case errors.As(err, &none):
				answer(w, http.StatusBadRequest, detail(none.Error()))
			case err != nil:
				answer(w, http.StatusInternalServerError, detail(err.Error()))
			default:
				answer(w, http.StatusOK, reply)
			}
		})
	}
	mux.HandleFunc("GET /{env}/splits", func(w http.ResponseWriter, r *http.Request) {
		if s.named(w, r) {
			answer(w, http.StatusOK, []map[string]string{{"name": string(env.Train), "type": "train"}, {"name": string(env.Eval), "type": "validation"}})
		}
	})
	about("num_tasks", func(_ context.Context, _ env.Split, n int, _ taskArgs) (any, error) {
		return map[string]int{"num_tasks": n}, nil
	})
	about("task", func(ctx context.Context, split env.Split, _ int, args taskArgs) (any, error) {
		if args.Index == nil {
			return nil, invalid("missing", "index", "Field required")
		}
		tasks, err := s.tasksOf(ctx, split, *args.Index, *args.Index+1)
		if err != nil {
			return nil, err
		}
		return map[string]any{"task": tasks[0]}, nil
	})
	about("tasks", func(ctx context.Context, split env.Split, n int, _ taskArgs) (any, error) {
		tasks, err := s.tasksOf(ctx, split, 0, n)
		return map[string]any{"tasks": tasks, "env_name": s.info.Name}, err
	})
	about("task_range", func(ctx context.Context, split env.Split, n int, args taskArgs) (any, error) {
		start, stop := 0, n
		if args.Start != nil {
			start = *args.Start
		}
		if args.Stop != nil {
			stop = min(*args.Stop, n)
		}
		tasks, err := s.tasksOf(ctx, split, start, stop)
		return map[string]any{"tasks": tasks}, err
	})
}

func (s *Server) tasksOf(ctx context.Context, split env.Split, start, stop int) ([]json.RawMessage, error) {
	if start < 0 || stop > s.info.Tasks(split) {
		return nil, badTask("Invalid task index")
	}
	if stop-start > mostTasks {
		return nil, badTask(fmt.Sprintf("%d tasks: ask for at most %d at once, with task_range", stop-start, mostTasks))
	}
	tasks := []json.RawMessage{}
	for i := start; i < stop; i++ {
		task, err := s.Task(ctx, split, i)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task)
	}
	return tasks, nil
}

// named reports whether a request is about this environment, and refuses it otherwise.
func (s *Server) named(w http.ResponseWriter, r *http.Request) bool {
	name := r.PathValue("env")
	if strings.EqualFold(name, s.info.Name) {
		return true
	}
	answer(w, http.StatusNotFound, detail(fmt.Sprintf("unknown environment %q", name)))
	return false
}

func readTaskArgs(w http.ResponseWriter, r *http.Request) (args taskArgs, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longest))
	if err != nil {
		return args, err
	}
	if err := decode(body, &args); err != nil {
		return args, err
	}
	if args.Split == nil {
		return args, invalid("missing", "split", "Field required")
	}
	return args, nil
}
