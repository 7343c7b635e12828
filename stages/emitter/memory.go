package emitter

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// memory holds a small number for each of some tasks. Its state takes a byte or two for the gap to the task before, and
// as many as the number needs.
type memory struct {
	most  int          // tasks; from then on a new one takes the place of another
	tasks []remembered // by task
}

type remembered struct{ task, value int64 }

func (m *memory) find(task int64) (int, bool) {
	return slices.BinarySearchFunc(m.tasks, task, func(r remembered, task int64) int { return cmp.Compare(r.task, task) })
}

// get is the number of a task, if there is one.
func (m *memory) get(task int64) (int64, bool) {
	i, ok := m.find(task)
	if !ok {
		return 0, false
	}
	return m.tasks[i].value, true
}

// set remembers a number of at least 0. Where there is no room, the tasks that chance picks are forgotten.
func (m *memory) set(task, value int64, chance uint64) {
	if i, ok := m.find(task); ok {
		m.tasks[i].value = value
		return
	}
	for len(m.tasks) >= m.most {
		i := int(chance % uint64(len(m.tasks)))
		m.tasks = slices.Delete(m.tasks, i, i+1)
	}
	i, _ := m.find(task)
	m.tasks = slices.Insert(m.tasks, i, remembered{task, value})
}

func (m *memory) forget(task int64) {
	if i, ok := m.find(task); ok {
		m.tasks = slices.Delete(m.tasks, i, i+1)
	}
}

func (m *memory) appendState(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(m.tasks)))
	next := int64(0)
	for _, r := range m.tasks {
		b = binary.AppendUvarint(b, uint64(r.task-next))
		b = binary.AppendUvarint(b, uint64(r.value))
		next = r.task + 1
	}
	return b
}

func (m *memory) restore(r *reader) {
	next := int64(0)
	for range r.count(len(r.rest)) {
		task := next + r.uint()
		if task < next {
			r.err = errShort
		}
		m.tasks = append(m.tasks, remembered{task, r.uint()})
		next = task + 1
	}
}
