{{- define "natkit.name" -}}
{{- if contains "natkit" .Release.Name }}{{ .Release.Name | trunc 54 }}{{ else }}{{ printf "%s-natkit" .Release.Name | trunc 54 }}{{ end }}-exporter
{{- end }}

{{- define "natkit.selector" -}}
app.kubernetes.io/name: natkit
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: exporter
{{- end }}

{{- define "natkit.labels" -}}
{{ include "natkit.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "natkit.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
