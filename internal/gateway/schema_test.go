package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/document"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

// validator is an independent reader of the schema.
func validator(t testing.TB) func(text string) error {
	t.Helper()
	written, err := json.Marshal(Schema())
	if err != nil {
		t.Fatal(err)
	}
	read, err := jsonschema.UnmarshalJSON(bytes.NewReader(written))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("gateway.json", read); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("gateway.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) error {
		t.Helper()
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return schema.Validate(value)
	}
}

// Every file that stands somewhere is one by the schema.
func TestSchemaTakesFiles(t *testing.T) {
	validate := validator(t)
	files := map[string]string{} // by their names, or what is in them
	for _, text := range slices.Concat(examples(readDoc(t, page)), examples(readDoc(t, reference)), []string{every}) {
		files[text] = text
	}
	for _, pattern := range []string{"../../examples/*.yaml", "engine/netfilter/testdata/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) < 4 {
			t.Fatal(pattern, names, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files[filepath.ToSlash(name)] = string(text)
		}
	}
	if err := validate(strings.Replace(composed, "<<: *web", "on: wan", 1)); err != nil { // a merge key is resolved before
		t.Error(err)
	}
	for name, text := range files {
		if _, err := ParseWith(beside{}, name, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := validate(text); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
}

// What is wrong in its words, its structure or its choices is wrong by the schema, too.
func TestSchemaRefuses(t *testing.T) {
	validate := validator(t)
	for _, text := range []string{
		"{}",
		"gateway: []",
		"gateway: {}\nmore: 1",
		"gateway: {natt: []}",
		"gateway: {nat: {masquerade: {}}}",
		"gateway: {engine: nftables}",
		"gateway: {mss: true}",
		"gateway: {flowtable: yess}",
		"gateway: {interfaces: {wan: []}}",
		"gateway: {interfaces: {wan: {eth0: 1}}}",
		"gateway: {interfaces: {wann: eth0}}",
		"gateway: {expect: {rate: 5000}}",
		"gateway: {limits: 2000}",
		inFile("{}"),
		inFile("{name: web}"),
		inFile("masquerade:"),
		inFile("{masquerade: {}, snat: {to: 203.0.113.7}}"),
		inFile("snat: {from: 10.0.0.0/8}"),
		inFile("snat: {from: 10.0.0.0/8, to: 203.0.113.7, random: maybe}"),
		inFile("snat: {from: [10.0.0.0/8, [10.0.0.0/8]], to: 203.0.113.7}"),
		inFile("dnat: {on: wan}"),
		inFile("dnat: {on: wan, to: [10.0.0.1:80, {weight: 3, adress: 10.0.0.2:80}]}"),
		inFile("dnat: {on: wan, to: 10.0.0.1:80, balance: random}"),
		inFile("dnat: {on: wan, to: 10.0.0.1:80, port: 80}"),
		inFile("static: {inside: 10.0.0.1}"),
		inFile("static: {inside: 10.0.0.1, outside: 203.0.113.7, from: 10.0.0.0/8}"),
		inFile("netmap: {inside: 10.0.0.0/24, outside: 203.0.113.0/24, stateless: 1}"),
		inFile("notrack: {on: 203.0.113.7, local: on}"),
		inFile("{masquerade: {}, enabled: disabled}"),
		"gateway: {include: {file: x.yaml}}",
		"gateway: {define: [1]}",
	} {
		if _, err := Parse("f", []byte(text)); err == nil {
			t.Errorf("this is right:\n%s", text)
		}
		if err := validate(text); err == nil {
			t.Errorf("not refused:\n%s", text)
		}
	}
}

// A file that Parse reads is one by the schema, whatever is in it.
func TestSchemaTakesAny(t *testing.T) {
	validate := validator(t)
	for seed := range uint64(500) {
		c := anyConfig(t, rand.New(rand.NewPCG(seed, 5)))
		text := string(Marshal(&c))
		if _, err := Parse("f", []byte(text)); err != nil {
			continue
		}
		if err := validate(text); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
}

// level is a mapping of the schema, and a text that gets there, with %s for what is in it.
type level struct {
	text  string
	words []string
}

// levels are all mappings below a schema, each once.
func levels(all map[string]*document.Schema, s *document.Schema, text string, met map[string]bool) (out []level) {
	if name, is := strings.CutPrefix(s.Ref, "#/$defs/"); is {
		if met[name] {
			return nil
		}
		met[name] = true
		return levels(all, all[name], text, met)
	}
	words := []string{}
	for word, below := range s.Properties {
		words = append(words, word)
		out = append(out, levels(all, below, strings.Replace(text, "%s", "{"+word+": %s}", 1), met)...)
	}
	if more, is := s.AdditionalProperties.(*document.Schema); is {
		out = append(out, levels(all, more, strings.Replace(text, "%s", "{any: %s}", 1), met)...)
	} else if s.Type == any("object") && s.AdditionalProperties == any(false) {
		out = append(out, level{text, words})
	}
	if s.Items != nil {
		out = append(out, levels(all, s.Items, strings.Replace(text, "%s", "[%s]", 1), met)...)
	}
	for _, form := range s.AnyOf {
		out = append(out, levels(all, form, text, met)...)
	}
	return out
}

// TestSchemaWords: in each mapping Parse knows the words of the schema, and no others of all that it knows anywhere.
func TestSchemaWords(t *testing.T) {
	s := Schema()
	mappings := levels(s.Defs, s, "%s", map[string]bool{})
	everywhere := map[string]bool{}
	wordsOf(reflect.TypeFor[Config](), everywhere)
	if len(mappings) < 12 || len(everywhere) < 30 {
		t.Fatalf("%d mappings, %d words", len(mappings), len(everywhere))
	}
	inSchema := map[string]bool{}
	for _, m := range mappings {
		for _, word := range m.words {
			inSchema[word] = true
		}
	}
	for word := range everywhere {
		if !inSchema[word] {
			t.Errorf("%s is not in the schema", word)
		}
	}
	for _, m := range mappings {
		for word := range inSchema {
			text := fmt.Sprintf(m.text, "{"+word+": {?: [[]]}}")
			_, err := Parse("f", []byte(text))
			var syntax *document.SyntaxError
			if !errors.As(err, &syntax) {
				t.Errorf("%s: %v", text, err)
				continue
			}
			// The fault is the word, or what it has.
			if known, has := syntax.Column != strings.Index(m.text, "%s")+2, slices.Contains(m.words, word); known != has {
				t.Errorf("%s: known: %v, in the schema: %v: %v", text, known, has, err)
			}
		}
	}
}
