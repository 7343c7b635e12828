package settings

import (
	"fmt"
	"strings"
)

// page is configs/README.md.
func page(sections []Section) string {
	var b strings.Builder
	b.WriteString(pageBegins)
	last := ""
	for _, section := range sections {
		if section.Of != "" && !strings.Contains(last, ".options") {
			b.WriteString("\n## Options of environments\n\nEnvironments have keys of their own, in `[envs.<name>.options]`. Those of a Python class are its author's.\n")
		}
		last = section.Name
		level := "##"
		if section.Of != "" {
			level = "###"
		}
		fmt.Fprintf(&b, "\n%s %s\n\n", level, markdown("`"+section.Title()+"`"))
		if section.Name == "" {
			b.Reset()
			b.WriteString(pageBegins + "\n## Outside of all sections\n\n")
		}
		if section.Doc != "" {
			fmt.Fprintf(&b, "%s\n\n", markdown(section.Doc))
		}
		b.WriteString("| key | type | default | meaning |\n|---|---|---|---|\n")
		for _, s := range section.Settings {
			fallback := ""
			if s.Default != "" {
				fallback = "`" + s.Default + "`"
				if strings.Contains(s.Default, "`") {
					fallback = "`` " + s.Default + " ``"
				}
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Key, markdown(s.Kind()), strings.ReplaceAll(fallback, "|", `\|`), markdown(s.Doc))
		}
	}
	return b.String()
}

const pageBegins = `# Configurations

Settings come from ` + "`--config FILE`" + `, then from variables (` + "`PRL__RUN__MAX_STEPS=5`" + `), then from ` + "`--set run.max_steps=5`" + `, each over the
ones before. An unknown key or a value out of range is refused with file and line. What a run will take, and where it comes from, says
` + "`prl-stage --stage all --config FILE --dry-run`" + `.

| file | what it is |
|---|---|
| [` + "`demo.toml`" + `](demo.toml) | three environments, a model from nothing; explains the settings that are often changed |
| [` + "`catch5.toml`" + `](catch5.toml) | catch alone on a 5 × 5 grid |
| [` + "`ordered.toml`" + `](ordered.toml) | strictly on-policy: one seed gives the same weights, byte for byte |
| [` + "`torch-cpu.toml`" + `](torch-cpu.toml) | a tiny model of Qwen3's shape, trained by PyTorch on the CPU (` + "`make torch`" + ` first) |
| [` + "`mixed.toml`" + `](mixed.toml) | catch, an environment of verifiers and one of OpenEnv (` + "`make verifiers openenv`" + ` first) |
| [` + "`algorithms/`" + `](algorithms) | each way to make a training signal of rollouts, alone on catch |

# Every key

Made from the code by ` + "`make generate`" + `. The binary has it with it: ` + "`prl-stage --config-keys`" + ` lists the keys, ` + "`prl-stage --config-keys trainer.torch`" + ` those
of a section, ` + "`prl-stage --explain run.max_async_level`" + ` tells all of one. A whole number counts what the meaning names; durations are texts
such as ` + "`\"30s\"`" + `, ` + "`\"10m\"`" + ` or ` + "`\"1h30m\"`" + `.
`

func markdown(s string) string {
	var b strings.Builder
	code := false
	for _, r := range s {
		switch {
		case r == '`':
			code = !code
			b.WriteRune(r)
		case r == '|':
			b.WriteString(`\|`)
		case r == '<' && !code:
			b.WriteString(`\<`)
		case r == '*' && !code:
			b.WriteString(`\*`)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
