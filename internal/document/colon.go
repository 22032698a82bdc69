package document

import "github.com/goccy/go-yaml/token"

// joinColons puts plain values with colons together again that stand in a list within
// braces: {from: [fd00::1, fd00::2]}. There the library's scanner takes any colon for
// the end of a key, where YAML wants white space or a bracket after it (YAML 1.2.2,
// 7.3.3: ns-plain-char).
func joinColons(tokens token.Tokens) token.Tokens {
	var joined token.Tokens
	var open []token.Type
	for i := 0; i < len(tokens); i++ {
		tk := tokens[i]
		switch tk.Type {
		case token.SequenceStartType, token.MappingStartType:
			open = append(open, tk.Type)
		case token.SequenceEndType, token.MappingEndType:
			open = open[:max(len(open)-1, 0)]
		case token.MappingValueType:
			if len(open) > 0 && open[len(open)-1] == token.SequenceStartType && i+1 < len(tokens) && goesOn(tk, tokens[i+1]) {
				i++
				tk = within(&joined, tk, tokens[i])
			}
		}
		joined = append(joined, tk)
	}
	if len(joined) == len(tokens) {
		return tokens
	}
	var linked token.Tokens
	linked.Add(joined...)
	return linked
}

// goesOn tells whether a plain value follows a colon without a space between.
func goesOn(colon, next *token.Token) bool {
	return isPlain(next) && next.Position.Offset == colon.Position.Offset+1
}

func isPlain(tk *token.Token) bool {
	switch tk.Type {
	case token.StringType, token.IntegerType, token.FloatType, token.BoolType, token.NullType:
		return true
	}
	return false
}

// within is the value that a colon stands in, from what came before it, which is taken
// from the tokens that there are, to what follows.
func within(before *token.Tokens, colon, next *token.Token) *token.Token {
	value, origin, at := ":"+next.Value, colon.Origin+next.Origin, colon.Position
	if last := len(*before) - 1; last >= 0 {
		tk := (*before)[last]
		if isPlain(tk) && tk.Position.Offset+len([]rune(tk.Value)) == colon.Position.Offset {
			value, origin, at = tk.Value+value, tk.Origin+origin, tk.Position
			*before = (*before)[:last]
		}
	}
	return token.New(value, origin, at)
}
