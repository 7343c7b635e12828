// Command validators holds what is below deploy to the programs that will read it: a Helm chart to Helm's linter and template
// engine and, manifest by manifest, to the decoding and validation of Kubernetes' API server and to the schemas of the operators
// whose kinds it uses; a compose file to Docker's own loader. It needs no cluster and no daemon. What it has read it prints as JSON,
// for tests that look further; what is wrong it says, and exits with 1.
//
//	validators chart FOLDER [VALUES.yaml …]    the manifests, an array
//	validators compose FILE [PROFILE …]        the project, with the .env beside it
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: validators chart FOLDER [VALUES.yaml …] | compose FILE [PROFILE …]")
	}
	var read any
	var err error
	switch args[0] {
	case "chart":
		read, err = chart(args[1], args[2:])
	case "compose":
		read, err = composed(args[1], args[2:])
	default:
		return fmt.Errorf("no command %q", args[0])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(read)
}
