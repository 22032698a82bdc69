package behaviour

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Record is what one run of the suite found.
type Record struct {
	Engine string `json:"engine"`
	// Kernel is the release that it ran on, without what builders append: "6.18".
	Kernel  string   `json:"kernel"`
	Results []Result `json:"results"`
}

// titles are the RFCs in the order of the page, with what they are about. 0 is what no
// RFC asks for.
var titles = []struct {
	rfc   int
	title string
}{
	{4787, "RFC 4787: UDP"},
	{5382, "RFC 5382: TCP"},
	{5508, "RFC 5508: ICMP"},
	{6888, "RFC 6888: carrier-grade NAT"},
	{7857, "RFC 7857: updates to the behavioural requirements"},
	{6296, "RFC 6296: NPTv6, stateless prefix translation"},
	{0, "What no RFC asks for"},
}

const introduction = `# How the gateway behaves: the RFCs' requirements

<!-- Written by: sudo scripts/go test ./internal/gateway/behaviour -run 'TestNetfilter|TestEBPF|TestPage' -update -->

Each line is a requirement and a test that sends real packets through a gateway (network
namespaces, packet sockets as hosts; all checksums of arriving packets are verified, including
those in quoted packets; no packet may appear outside with an inside address). The page is
generated from the suite's data and the results of its runs.

| word | meaning |
|---|---|
| meets | the engine does what is required; where several results are allowed, which of them |
| **deviates** | it is known to do something else, by design, which is listed with the reason. The test fails if it does anything else, also if it meets the requirement one day |
| not offered | the engine does not have this, for the reason given |
| – | not testable with packets, for the reason given |
| left | the engine leaves all rules of the test's gateway to the one behind it, with which the test has the same result |

Behind engine ebpf is netfilter: what is declared of it holds for both where no engine is named. At native
XDP and at tc the programs do the same, also with VLAN interfaces.

SHOULD includes RECOMMENDED. "natkit" marks what this gateway promises without an RFC.
A test alone: ` + "`sudo scripts/go test ./internal/gateway/behaviour -run 'TestNetfilter/^rfc4787-req-1$' -v`" + `.
`

// Page writes docs/rfc.md: each case with what the records say of it.
func Page(cases []Case, records []Record) string {
	var b strings.Builder
	b.WriteString(introduction)
	summary(&b, cases, records)
	for _, t := range titles {
		of := casesOf(cases, t.rfc)
		if len(of) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| | level | asked | test |%s why |\n|---|---|---|---|%s---|\n", t.title, engines(records, " %s |"), engines(records, "---|"))
		for _, c := range of {
			row(&b, c, records)
		}
	}
	return b.String()
}

// casesOf are those of an RFC, in the order of its requirements.
func casesOf(cases []Case, rfc int) []*Case {
	var of []*Case
	for i := range cases {
		if cases[i].RFC == rfc {
			of = append(of, &cases[i])
		}
	}
	if rfc != 0 {
		slices.SortStableFunc(of, func(a, b *Case) int { return compareRequirements(a.Requirement, b.Requirement) })
	}
	return of
}

// compareRequirements orders REQ-2 before REQ-10, section 2.1 before section 10, and all
// requirements that have numbers before sections.
func compareRequirements(a, b string) int {
	aRest, aNumbered := strings.CutPrefix(a, "REQ-")
	bRest, bNumbered := strings.CutPrefix(b, "REQ-")
	if aNumbered != bNumbered {
		return cmp.Compare(truth(bNumbered), truth(aNumbered))
	}
	aNumbers, aRest := leadingNumbers(aRest)
	bNumbers, bRest := leadingNumbers(bRest)
	return cmp.Or(slices.Compare(aNumbers, bNumbers), strings.Compare(aRest, bRest))
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// leadingNumbers are those at the start of "4.2.1 a".
func leadingNumbers(s string) (numbers []int, rest string) {
	end := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsDigit(r) && r != '.' })
	if end < 0 {
		end = len(s)
	}
	for part := range strings.SplitSeq(s[:end], ".") {
		n, _ := strconv.Atoi(part)
		numbers = append(numbers, n)
	}
	return numbers, s[end:]
}

func engines(records []Record, format string) string {
	s := ""
	for _, r := range records {
		if strings.Contains(format, "%s") {
			s += fmt.Sprintf(format, r.Engine)
		} else {
			s += format
		}
	}
	return s
}

func summary(b *strings.Builder, cases []Case, records []Record) {
	for _, r := range records {
		fmt.Fprintf(b, "\n%s (Linux %s):\n\n| | meets | deviates | not offered | – | left |\n|---|---|---|---|---|---|\n", r.Engine, r.Kernel)
		for _, t := range titles {
			of := casesOf(cases, t.rfc)
			if counts, left := r.count(of); len(of) > 0 {
				fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d |\n", t.title, counts[Meets], counts[Deviates], counts[NotOffered], counts[NotTestable], left)
			}
		}
	}
}

// count counts the results of cases by status, without those that are left to another engine.
func (r *Record) count(of []*Case) (by map[Status]int, left int) {
	by = map[Status]int{}
	for _, c := range of {
		if result := r.of(c.ID); result.Left {
			left++
		} else {
			by[result.Status]++
		}
	}
	return by, left
}

// of is the result of a case; its Status is empty where there is none.
func (r *Record) of(id string) Result {
	i := slices.IndexFunc(r.Results, func(r Result) bool { return r.ID == id })
	if i < 0 {
		return Result{ID: id}
	}
	return r.Results[i]
}

func row(b *strings.Builder, c *Case, records []Record) {
	fmt.Fprintf(b, "| %s | %s | %s | %s |", cell(c.Requirement), c.Level, cell(c.Asks), testOf(c))
	why := []string{c.Untestable}
	for _, r := range records {
		fmt.Fprintf(b, " %s |", cell(found(c, r.of(c.ID))))
		if e, declared := c.Expect[r.Engine]; declared && (len(c.Expect) > 1 || r.Engine != Netfilter) {
			why = append(why, r.Engine+": "+e.Reason)
		} else if declared {
			why = append(why, e.Reason)
		}
	}
	why = slices.DeleteFunc(why, func(s string) bool { return s == "" })
	fmt.Fprintf(b, " %s |\n", cell(strings.Join(why, "; ")))
}

func testOf(c *Case) string {
	if c.Run == nil {
		return "–"
	}
	return c.ID
}

func found(c *Case, r Result) string {
	switch {
	case r.Status == NotTestable:
		return "–"
	case r.Left:
		return "left"
	case r.Status == Deviates:
		return fmt.Sprintf("**deviates**: %s", r.Outcome)
	case r.Status == Meets && len(c.Want) > 1:
		return fmt.Sprintf("meets: %s", r.Outcome)
	case r.Status == "":
		return "not run"
	}
	return string(r.Status)
}

// cell keeps text in its cell of a table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s)
}
