package main

import (
	"context"
	"encoding/json"

	"github.com/compose-spec/compose-go/v2/cli"
)

// composed loads a compose file as `docker compose config` does, with the profiles and the .env beside it; variables of this process
// are not looked at.
func composed(file string, profiles []string) (map[string]any, error) {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithEnvFiles(), cli.WithDotEnv, cli.WithProfiles(profiles), cli.WithResolvedPaths(true))
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	text, err := project.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var read map[string]any
	return read, json.Unmarshal(text, &read)
}
