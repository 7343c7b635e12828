// Package prometheus is the runbook of the alerts in this folder, as a part of the binary: the page of a run shows it to those who
// have no checkout.
package prometheus

import (
	_ "embed" // the runbook
	"strings"
)

//go:embed README.md
var readme string

// Runbook is what the runbook says of a fault, as Markdown without its heading; false where it has no such heading.
func Runbook(fault string) (text string, ok bool) {
	_, all, _ := strings.Cut(readme, "\n## Runbook\n")
	all, _, _ = strings.Cut(all, "\n## ")
	for section := range strings.SplitSeq(all, "\n### ") {
		if name, text, ok := strings.Cut(section, "\n"); ok && name == fault && name != "" {
			return strings.TrimSpace(text), true
		}
	}
	return "", false
}
