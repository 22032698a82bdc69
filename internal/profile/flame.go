package profile

import (
	"bufio"
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/natkit/natkit/internal/units"
)

var (
	//go:embed flame.html.tmpl
	flameTemplate string
	//go:embed flame.css
	flameCSS string
	//go:embed flame.js
	flameJS string
)

var flamePage = template.Must(template.New("flame.html.tmpl").Parse(flameTemplate))

// palette has the colours of classes, in the order of the table, by hue; any two can be
// distinguished, and dark text is readable on all of them.
var palette = []string{
	"#fb6a95", "#fca792", "#f9761f", "#e89f30", "#c6af53", "#f9ce1f", "#b1e830", "#d5eba2", "#74b464", "#1ff91f",
	"#6afb78", "#8cd9ba", "#1ff9b8", "#1fe3f9", "#1fa2f9", "#b9b9fd", "#b292fc", "#fa42fa", "#f075d7", "#fdb9e9",
}

// restColours are those of what has no class.
var restColours = map[string]string{ClassReceiveRest: "#9fb1c6", ClassKernelRest: "#c4c4be", ClassUser: "#e9e9e4"}

// flameView is what the template reads.
type flameView struct {
	Title string
	Facts []string
	Data  flameData
	CSS   template.CSS
	JS    template.JS
}

// flameData is what the page's script reads.
type flameData struct {
	Names   []string     `json:"names"`
	Classes []flameClass `json:"classes"`
	Root    *flameNode   `json:"root"`
	// Seconds of CPU time that a sample stands for.
	Period float64 `json:"period"`
	// All is the number of samples that all CPUs would give if they were busy.
	All float64 `json:"all"`
}

type flameClass struct {
	Name    string `json:"name"`
	Colour  string `json:"colour"`
	Samples uint64 `json:"samples"`
}

// flameNode is a function, as it was called, with what it called, most first. In
// JSON it is [name, class, samples, [node…]].
type flameNode struct {
	name, class int
	samples     uint64
	children    []*flameNode
	index       map[int]*flameNode // of children by name
}

// MarshalJSON leaves out what tens of thousands of nodes would repeat.
func (n *flameNode) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{n.name, n.class, n.samples, append([]*flameNode{}, n.children...)})
}

// WriteFlame writes a flame graph as one page that needs no network: style, script
// and data are in it.
func (s *Stacks) WriteFlame(w io.Writer) error {
	view := flameView{
		Title: "Where the CPUs spent their time",
		Facts: []string{
			"Linux " + s.Kernel,
			units.Plural(s.CPUs, "CPU", "CPUs") + ", " + units.Fixed(s.Seconds, 1) + " s",
			fmt.Sprintf("%d samples a second of each by %s", s.Hz, s.Event),
			units.Count(s.Samples()) + " samples busy, " + units.Count(s.Idle) + " idle, " + units.Count(s.Lost) + " lost",
		},
		Data: s.flameData(),
		CSS:  template.CSS(flameCSS),
		JS:   template.JS(flameJS),
	}
	var page bytes.Buffer
	if err := flamePage.Execute(&page, view); err != nil {
		return fmt.Errorf("write the flame graph: %w", err)
	}
	_, err := page.WriteTo(w)
	return err
}

func (s *Stacks) flameData() flameData {
	b := &flameBuilder{classifier: newClassifier(classes), names: map[string]int{}, classes: map[string]int{}}
	b.data.Root = &flameNode{}
	b.name("all")
	for _, class := range append(classes.all(true), ClassKernelRest, ClassUser) {
		b.classes[class] = len(b.data.Classes)
		b.data.Classes = append(b.data.Classes, flameClass{Name: class, Colour: colour(class, len(b.data.Classes))})
	}
	b.data.Root.class = b.classes[ClassKernelRest]
	for _, stack := range s.Stacks {
		b.add(stack)
	}
	b.data.Root.sort()
	b.data.Period = 1 / float64(max(s.Hz, 1))
	b.data.All = s.Seconds * float64(s.Hz*s.CPUs)
	return b.data
}

func colour(class string, i int) string {
	return cmp.Or(restColours[class], palette[i%len(palette)])
}

type flameBuilder struct {
	classifier     *classifier
	names, classes map[string]int
	data           flameData
}

func (b *flameBuilder) name(text string) int {
	i, ok := b.names[text]
	if !ok {
		i = len(b.data.Names)
		b.names[text] = i
		b.data.Names = append(b.data.Names, text)
	}
	return i
}

// add adds a stack; a frame has the class that its own time counts for.
func (b *flameBuilder) add(stack Stack) {
	node := b.data.Root
	node.samples += stack.Count
	class := b.classes[ClassKernelRest] // of a stack without frames
	for i, w := range b.classifier.works(stack.Frames) {
		class = b.classes[w.class]
		node = node.child(b.name(stack.Frames[i].String()))
		node.class = class
		node.samples += stack.Count
	}
	b.data.Classes[class].Samples += stack.Count
}

func (n *flameNode) child(name int) *flameNode {
	if c, ok := n.index[name]; ok {
		return c
	}
	if n.index == nil {
		n.index = map[int]*flameNode{}
	}
	c := &flameNode{name: name}
	n.index[name] = c
	n.children = append(n.children, c)
	return c
}

func (n *flameNode) sort() {
	slices.SortFunc(n.children, func(a, b *flameNode) int {
		return cmp.Or(cmp.Compare(b.samples, a.samples), cmp.Compare(a.name, b.name))
	})
	for _, c := range n.children {
		c.sort()
	}
}

// WriteFolded writes one line per stack: its functions, outermost first, joined by
// semicolons, a blank and the number of samples. Many tools read this form.
func (s *Stacks) WriteFolded(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, stack := range s.Stacks {
		fmt.Fprintf(out, "%s %d\n", folded(stack.Frames), stack.Count)
	}
	return out.Flush()
}

func folded(frames []Frame) string {
	var b strings.Builder
	for i, f := range frames {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(f.String())
	}
	return b.String()
}

// String is the function, with its module where it has one. Neither has a blank
// or a semicolon in it.
func (f Frame) String() string {
	if f.Module == "" {
		return f.Function
	}
	return f.Function + "[" + f.Module + "]"
}

// WritePprof writes the stacks for 'go tool pprof' and what else reads its form
// (profile.proto, compressed): samples, and the CPU time that they stand for.
// Each sample has its class as a label.
func (s *Stacks) WritePprof(w io.Writer) error {
	b := &pprofBuilder{locations: map[Frame]*pprof.Location{}}
	period := int64(time.Second) / int64(max(s.Hz, 1))
	b.profile = pprof.Profile{
		SampleType:        []*pprof.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		DefaultSampleType: "cpu",
		PeriodType:        &pprof.ValueType{Type: "cpu", Unit: "nanoseconds"},
		Period:            period,
		DurationNanos:     int64(s.Seconds * float64(time.Second)),
		Comments:          []string{s.Title()},
	}
	c := newClassifier(classes)
	for _, stack := range s.Stacks {
		b.add(stack, c.stack(stack.Frames), period)
	}
	if err := b.profile.CheckValid(); err != nil {
		return fmt.Errorf("encode the profile for pprof: %w", err)
	}
	return b.profile.Write(w)
}

type pprofBuilder struct {
	profile   pprof.Profile
	locations map[Frame]*pprof.Location
}

func (b *pprofBuilder) add(stack Stack, w work, period int64) {
	sample := &pprof.Sample{
		Value: []int64{int64(stack.Count), int64(stack.Count) * period},
		Label: map[string][]string{"class": {w.class}},
	}
	if w.receive {
		sample.Label["receive"] = []string{"yes"}
	}
	for i := len(stack.Frames) - 1; i >= 0; i-- { // innermost first
		sample.Location = append(sample.Location, b.location(stack.Frames[i]))
	}
	b.profile.Sample = append(b.profile.Sample, sample)
}

func (b *pprofBuilder) location(f Frame) *pprof.Location {
	if l, ok := b.locations[f]; ok {
		return l
	}
	id := uint64(len(b.locations) + 1)
	function := &pprof.Function{ID: id, Name: f.Function, SystemName: f.Function, Filename: f.Module}
	l := &pprof.Location{ID: id, Line: []pprof.Line{{Function: function}}}
	b.profile.Function = append(b.profile.Function, function)
	b.profile.Location = append(b.profile.Location, l)
	b.locations[f] = l
	return l
}

// Title returns how the samples were taken.
func (s *Stacks) Title() string {
	return fmt.Sprintf("Linux %s, %d samples of the busy time of %d CPUs in %.1f s, %d a second of each by %s",
		s.Kernel, s.Samples(), s.CPUs, s.Seconds, s.Hz, s.Event)
}
