package ui

import "slices"

// deadLetters are the records that were refused: those in the files, and those that have come since.
type deadLetters struct {
	Count  int64
	Newest string // which stage refused it, and why

	files int64
	end   int64   // of the files
	live  []int64 // offsets behind it
}

// counted says how many there are before an offset, as the files tell.
func (d *deadLetters) counted(count int64, newest string, end int64) {
	d.live = slices.DeleteFunc(d.live, func(offset int64) bool { return offset < end })
	if len(d.live) == 0 && newest != "" {
		d.Newest = newest
	}
	d.files, d.end, d.Count = count, end, count+int64(len(d.live))
}

// came takes one from the topic.
func (d *deadLetters) came(offset int64, said string) {
	if offset < d.end || len(d.live) > 0 && offset <= d.live[len(d.live)-1] {
		return
	}
	d.live, d.Newest = append(d.live, offset), said
	d.Count = d.files + int64(len(d.live))
}

// countDeadLetters counts those that stand in the files before a position. Files that cannot be read are no reason to stop.
func (u *UI) countDeadLetters(end int64) {
	count, newest, err := u.files.DeadLetters(end)
	if err != nil {
		u.rt.Log.Warn("the page cannot count the refused records in the files", "stage", Name, "error", err)
	}
	u.model.locked(func() { u.model.dlq.counted(count, newest, end) })
}
