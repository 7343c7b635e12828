package progress

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Doing says on out, from time to time, that something goes on, until stop is called: in place on a terminal, where it is gone
// afterwards, as a line now and then elsewhere. say gives how far it is.
func Doing(out io.Writer, say func(since time.Duration) string) (stop func()) {
	p := NewPrinter(out)
	every := lineEvery
	if p.terminal != nil {
		every = screenEvery
	}
	begun, done := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				if p.terminal != nil {
					p.draw()
				}
				return
			case now := <-tick.C:
				line := say(now.Sub(begun).Round(time.Second))
				switch {
				case line == "":
				case p.terminal != nil:
					p.draw(line)
				default:
					fmt.Fprintln(out, line)
				}
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
}
