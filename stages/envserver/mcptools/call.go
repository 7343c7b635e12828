package mcptools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Tools implements [env.ToolSource].
func (s *Session) Tools() []env.Tool { return s.tools }

// CallTool implements [env.ToolSource].
func (s *Session) CallTool(ctx context.Context, name string, args json.RawMessage) (env.ToolResult, error) {
	limit := s.server.timeout()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %v (timeout_s)", limit))
	defer cancel()
	said, err := s.session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	var refused *jsonrpc.Error
	switch {
	case errors.As(err, &refused) && refused.Code == jsonrpc.CodeInvalidParams && ctx.Err() == nil:
		return env.ToolResult{}, env.Refuse("%s", refused.Message)
	case err != nil:
		return env.ToolResult{}, s.failure("call a tool of", reason(ctx, err))
	}
	result, err := s.result(name, said)
	if err != nil {
		return env.ToolResult{}, s.failure("read the answer of", err)
	}
	if said.IsError {
		return env.ToolResult{}, env.Refuse("%s", result.Text)
	}
	return result, nil
}

// result puts an answer into what a model is shown: texts line by line, images beside them, and a word for what is neither.
func (s *Session) result(tool string, said *mcp.CallToolResult) (env.ToolResult, error) {
	var r env.ToolResult
	var texts []string
	for _, c := range said.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			texts = append(texts, c.Text)
		case *mcp.ImageContent:
			i := env.Image{MIME: c.MIMEType, Data: c.Data}
			if err := i.Check(); err != nil {
				return r, err
			}
			if s.server.Alt != nil {
				i.Alt = s.server.Alt(tool, i)
			}
			r.Images = append(r.Images, i)
		case *mcp.AudioContent:
			texts = append(texts, fmt.Sprintf("(audio, %s, %d bytes)", c.MIMEType, len(c.Data)))
		case *mcp.ResourceLink:
			texts = append(texts, strings.TrimSpace(c.Name+" "+c.URI))
		case *mcp.EmbeddedResource:
			texts = append(texts, embedded(c.Resource))
		default:
			return r, fmt.Errorf("content of type %T, which nobody knows", c)
		}
	}
	if len(said.Content) == 0 && said.StructuredContent != nil {
		text, err := json.Marshal(said.StructuredContent)
		if err != nil {
			return r, err
		}
		texts = append(texts, string(text))
	}
	r.Text = strings.Join(texts, "\n")
	return r, nil
}

func embedded(r *mcp.ResourceContents) string {
	switch {
	case r == nil:
		return ""
	case r.Blob != nil:
		return fmt.Sprintf("(%s, %s, %d bytes)", r.URI, r.MIMEType, len(r.Blob))
	}
	return r.Text
}
