package envserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

func picture(alt string) env.Image {
	return env.Image{MIME: "image/png", Data: []byte("png of " + alt), Alt: alt}
}

// pictures is a game whose prompt and answer have images.
func pictures(images ...env.Image) *game {
	return &game{
		info:   env.Info{MaxTurns: 2},
		prompt: []env.Message{env.System("Name it."), {Role: env.RoleUser, Content: "what?", Images: images}},
		reply: func(_ context.Context, turn int, _ env.Message) (env.Turn, error) {
			return env.Turn{Messages: []env.Message{{Role: env.RoleUser, Images: images[:1]}}, Done: turn == 2}, nil
		},
	}
}

// A policy that reads only text is shown the alt text; the trace keeps the images and what was shown.
func TestImagesAreShownInWords(t *testing.T) {
	tok := tokenizer(t)
	m := says(tok, "dot")
	trace := playOne(t, testPlayer(t, pictures(picture("a dot"), picture("a line")), m), testTask())
	scored(t, trace)
	if got, want := contents(trace), "system:Name it.|user:[image: a dot]\n[image: a line]\nwhat?|assistant:dot|user:[image: a dot]|assistant:dot|user:[image: a dot]"; got != want {
		t.Errorf("contents %q, want %q", got, want)
	}
	if text := tok.Decode(m.requests[0].Tokens); !strings.Contains(text, "[image: a dot]\n[image: a line]\nwhat?") {
		t.Errorf("the model saw %q", text)
	}
	sum := sha256.Sum256([]byte("png of a line"))
	want := schemas.Image{Mime: "image/png", Alt: "a line", Data: []byte("png of a line"), SHA256: hex.EncodeToString(sum[:])}
	if images := trace.Nodes[1].Images; len(images) != 2 || string(images[1].Data) != string(want.Data) || images[1].SHA256 != want.SHA256 || images[1].Alt != want.Alt || images[1].Mime != want.Mime {
		t.Errorf("images %+v", images)
	}
	if len(trace.Nodes[3].Images) != 1 || trace.Nodes[0].Images != nil {
		t.Errorf("%d images behind the first reply", len(trace.Nodes[3].Images))
	}
}

// What cannot be put in words cannot be played by such a policy, at the start or later.
func TestImagesWithoutWords(t *testing.T) {
	m := says(tokenizer(t), "dot")
	failed(t, playOne(t, testPlayer(t, pictures(picture("")), m), testTask()), errorEnvironment, "no alt text")
	g := pictures(picture("a dot"))
	g.reply = func(context.Context, int, env.Message) (env.Turn, error) {
		return env.Turn{Messages: []env.Message{{Role: env.RoleUser, Images: []env.Image{picture("")}}}}, nil
	}
	failed(t, playOne(t, testPlayer(t, g, m), testTask()), errorEnvironment, "no alt text")
}

// A group scorer gets messages as the environment said them, images apart from the content.
func TestImagesOfAGroup(t *testing.T) {
	g := &viewer{game: pictures(picture("a dot"))}
	for _, trace := range testPlayer(t, g, says(tokenizer(t), "dot")).play(t.Context(), groupTask(), nil) {
		scored(t, trace)
	}
	if g.saw.Content != "what?" || len(g.saw.Images) != 1 || g.saw.Images[0].Alt != "a dot" {
		t.Errorf("%+v", g.saw)
	}
}

type viewer struct {
	*game
	saw env.Message
}

func (v *viewer) ScoreGroup(_ context.Context, _ json.RawMessage, group []env.Rollout) ([]env.Score, error) {
	v.saw = group[0].Messages[1]
	scores := make([]env.Score, len(group))
	for i := range scores {
		scores[i].Rewards = env.Rewards{"r": env.Value(0)}
	}
	return scores, nil
}
