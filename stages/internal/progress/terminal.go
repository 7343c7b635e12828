package progress

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// A Terminal has a picture that stands at its bottom, and text that scrolls by above it: log lines never tear the picture, whoever
// writes them. It may be used from several goroutines.
type Terminal struct {
	out  io.Writer
	size func() (width int)

	mu    sync.Mutex
	lines []string // the picture
	drawn []string // its lines as they are on the screen
	half  []byte   // of a line that is not over
}

// NewTerminal is the terminal of f; false where f is none.
func NewTerminal(f *os.File) (*Terminal, bool) {
	if !term.IsTerminal(int(f.Fd())) {
		return nil, false
	}
	return &Terminal{out: f, size: func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return width
	}}, true
}

// Write puts text above the picture.
func (t *Terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.half = append(t.half, p...)
	end := bytes.LastIndexByte(t.half, '\n') + 1
	if end == 0 && len(t.half) < 64<<10 {
		return len(p), nil // a picture can stand below whole lines only
	}
	if end == 0 {
		t.half, end = append(t.half, '\n'), len(t.half)+1
	}
	text := string(t.half[:end])
	t.half = append(t.half[:0], t.half[end:]...)
	_, err := io.WriteString(t.out, t.wipe()+text+t.picture())
	return len(p), err
}

// Draw replaces the picture, in one write.
func (t *Terminal) Draw(lines []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = lines
	_, err := io.WriteString(t.out, t.wipe()+t.picture())
	return err
}

// Leave lets the picture scroll by like other text; what is drawn next stands below it.
func (t *Terminal) Leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines, t.drawn = nil, nil
}

// Width is that of the terminal; 0 where it is not known.
func (t *Terminal) Width() int { return t.size() }

// wipe goes to where the picture begins and wipes it. What comes instead is in the same write, so that nothing flickers.
func (t *Terminal) wipe() string {
	rows, width := 0, t.size()
	for _, l := range t.drawn {
		rows++
		if n := Cells(l); width > 0 && n > width { // it was made narrower since, and breaks the line
			rows += (n - 1) / width
		}
	}
	t.drawn = nil
	if rows == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", rows)
}

func (t *Terminal) picture() string {
	var b strings.Builder
	width := t.size()
	for _, l := range t.lines {
		l = Clip(l, width)
		t.drawn = append(t.drawn, l)
		b.WriteString(l + "\n")
	}
	return b.String()
}
