package kafka

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestACLScript reads the calls that acls.sh makes back into the table they come from.
func TestACLScript(t *testing.T) {
	table, err := os.ReadFile("acls.csv")
	if err != nil {
		t.Fatal(err)
	}
	_, rows, _ := strings.Cut(strings.ReplaceAll(string(table), "<run>", "demo"), "\n")
	want := strings.Fields(rows)
	var calls, said bytes.Buffer
	cmd := exec.Command("./acls.sh", "demo", "echo", "kafka-acls", "--bootstrap-server", "here")
	cmd.Stdout, cmd.Stderr = &calls, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	var got []string
	for call := range strings.Lines(calls.String()) {
		words := strings.Fields(call)
		if !slices.Equal(words[:5], []string{"kafka-acls", "--bootstrap-server", "here", "--add", "--force"}) {
			t.Fatalf("call %q", call)
		}
		option := map[string]string{}
		for i, w := range words {
			if w == "--cluster" {
				got = append(got, strings.Join([]string{option["--allow-principal"], "Cluster,LITERAL,kafka-cluster", option["--operation"], "Allow,*"}, ","))
			}
			if i+1 == len(words) {
				continue
			}
			value := words[i+1]
			option[w] = value
			if resource := map[string]string{"--topic": "Topic", "--group": "Group", "--transactional-id": "TransactionalId"}[w]; resource != "" {
				got = append(got, strings.Join([]string{option["--allow-principal"], resource, strings.ToUpper(option["--resource-pattern-type"]), value, option["--operation"], "Allow,*"}, ","))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the calls give\n%s\nthe table holds\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	cmd = exec.Command("./acls.sh", "demo", "false")
	if err := cmd.Run(); err == nil {
		t.Error("a call that fails is no error")
	}
}
