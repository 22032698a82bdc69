package lab

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// tableFull is a scenario like table-full, which cases of errors are made of.
func tableFull(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/base.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestParseErrors runs the cases of testdata/errors.txtar, which says how they
// are written.
func TestParseErrors(t *testing.T) {
	const file = "testdata/errors.txtar"
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(archive.Files) == 0 {
		t.Fatal("no cases")
	}
	base := tableFull(t)
	for i, f := range archive.Files {
		t.Run(f.Name, func(t *testing.T) {
			source, edit, want := editedSource(t, base, string(f.Data))
			s, err := Parse("mine.yaml", []byte(source))
			if err == nil {
				t.Fatalf("no error, but %+v", s)
			}
			if s != nil {
				t.Error("a scenario came with the error")
			}
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %T %q, want one line of a *SyntaxError", err, err)
			}
			if *update {
				archive.Files[i].Data = []byte(edit + "= " + err.Error() + "\n")
			} else if diff := cmp.Diff(want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// editedSource applies a case to the base text. edit is the case without its error.
func editedSource(t *testing.T, base, text string) (source, edit, want string) {
	t.Helper()
	var old, replacement strings.Builder
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "- "):
			old.WriteString(line[2:])
		case strings.HasPrefix(line, "+ "):
			replacement.WriteString(line[2:])
		case strings.HasPrefix(line, "= "):
			want = strings.TrimSpace(line[2:])
			continue
		default:
			t.Fatalf("line %q begins with none of -, + and =", line)
		}
		edit += line
	}
	if old.Len() == 0 {
		return replacement.String(), edit, want
	}
	before, after, ok := strings.Cut(base, old.String())
	if !ok {
		t.Fatalf("table-full has no\n%s", old.String())
	}
	return before + replacement.String() + after, edit, want
}

func TestScenariosAreWhole(t *testing.T) {
	all := Scenarios()
	if len(all) == 0 {
		t.Fatal("no scenarios")
	}
	for _, s := range all {
		found, err := Find(s.Name)
		if err != nil || found != s {
			t.Errorf("Find(%s): %v, error %v", s.Name, found, err)
		}
		if s.About == "" || s.Expect.Finding == "" && !s.Healthy() {
			t.Errorf("scenario %s does not say what it is about and what is found", s.Name)
		}
		if s.Expect.Rate != nil {
			t.Errorf("scenario %s expects a rate, which is another one on another machine", s.Name)
		}
		for _, st := range s.Stages {
			if st.About == "" {
				t.Errorf("stage %s of %s does not say what is special", st.Name, s.Name)
			}
		}
	}
	if _, err := Find("nothing"); err == nil || !strings.Contains(err.Error(), "there are: ct-") {
		t.Errorf("an unknown scenario: %v", err)
	}
}

// FuzzParse looks for panics, and for results that contradict themselves.
func FuzzParse(f *testing.F) {
	f.Add(tableFull(f))
	f.Add("name: x\nstages: [*a]\n")
	f.Add("a: &a [*a]\nname: *a\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer testutil.Bounded(t, len(text))()
		s, err := Parse("f.yaml", []byte(text))
		if (s == nil) == (err == nil) {
			t.Fatalf("scenario %v, error %v", s, err)
		}
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f.yaml:") {
				t.Fatalf("error is not one line with its place: %q", err)
			}
			return
		}
		if len(s.Plan()) == 0 || !s.ServerAddr().IsValid() {
			t.Fatalf("a valid scenario without a plan or server: %+v", s)
		}
	})
}
