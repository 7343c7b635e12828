package replay

// Progress is told how much of a piece of work is done.
type Progress func(what string, done, total int64)

// A meter counts one piece of work.
type meter struct {
	show        Progress
	what        string
	done, total int64
}

func newMeter(show Progress, what string, total int64) *meter {
	return &meter{show: show, what: what, total: total}
}

func (m *meter) add(n int64) {
	m.done += n
	if m.show != nil {
		m.show(m.what, m.done, m.total)
	}
}

// end is the end of the work, which need not have taken all there was.
func (m *meter) end() {
	if m.show != nil && m.done < m.total {
		m.show(m.what, m.total, m.total)
	}
}
