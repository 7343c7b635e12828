package chaos

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const reply = `{"tokens":[1,2,3]}`

// ask sends a request through p and tells what came.
func ask(t *testing.T, p *proxy) (status int, body string, err error) {
	t.Helper()
	resp, err := http.Post(p.url+"/inference/v1/generate", "application/json", strings.NewReader("{}"))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

func testProxy(t *testing.T) *proxy {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/inference/v1/generate" {
			_, _ = io.WriteString(w, reply) // a test fails on what is missing
		}
	}))
	t.Cleanup(model.Close)
	p, err := newProxy(model.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

func TestProxyIsTransparent(t *testing.T) {
	p := testProxy(t)
	for range 20 {
		if status, body, err := ask(t, p); err != nil || status != http.StatusOK || body != reply {
			t.Fatalf("status %d, body %q, error %v", status, body, err)
		}
	}
}

// TestProxyFaults: what is hit fails in its own way, what is not comes whole, and nothing comes changed.
func TestProxyFaults(t *testing.T) {
	for kind, hit := range map[Kind]func(status int, body string, err error) bool{
		ModelDrop: func(_ int, _ string, err error) bool { return err != nil },
		ModelCut: func(_ int, body string, err error) bool {
			return err != nil && body != reply && strings.HasPrefix(reply, body)
		},
		ModelRefuse: func(status int, _ string, _ error) bool { return status == http.StatusServiceUnavailable },
	} {
		t.Run(string(kind), func(t *testing.T) {
			p := testProxy(t)
			p.set(kind, 1)
			hits, parts := 0, 0
			const requests = 60
			for range requests {
				status, body, err := ask(t, p)
				switch {
				case hit(status, body, err):
					hits++
					if body != "" {
						parts++
					}
				case err != nil || status != http.StatusOK || body != reply:
					t.Fatalf("status %d, body %q, error %v", status, body, err)
				}
			}
			if hits == 0 || hits == requests {
				t.Errorf("%d of %d requests were hit", hits, requests)
			}
			if kind == ModelCut && parts == 0 {
				t.Error("no part of a reply came")
			}
			p.set("", 0)
			if _, body, err := ask(t, p); err != nil || body != reply {
				t.Errorf("after the fault: %q, %v", body, err)
			}
		})
	}
}

func TestProxyWithoutModel(t *testing.T) {
	p, err := newProxy("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if status, _, err := ask(t, p); err != nil || status != http.StatusBadGateway {
		t.Errorf("status %d, error %v; want 502, which is asked again", status, err)
	}
}
