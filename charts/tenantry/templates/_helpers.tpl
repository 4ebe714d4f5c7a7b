{{- define "tenantry.labels" -}}
app.kubernetes.io/name: tenantry
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tenantry.selector" -}}
app.kubernetes.io/name: tenantry
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tenantry.grace" -}}
{{ add .Values.drainSeconds 30 }}
{{- end }}

{{- define "tenantry.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "tenantry.pod" -}}
{{- with .Values.pod }}
{{ toYaml . }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "tenantry.container" -}}
name: tenantry
image: {{ include "tenantry.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop:
      - ALL
{{- end }}

{{- define "tenantry.mounts" -}}
envFrom:
  - configMapRef:
      name: {{ .Release.Name }}-settings
volumeMounts:
  - name: secrets
    mountPath: /run/secrets/tenantry
    readOnly: true
  {{- if .Values.plans }}
  - name: plans
    mountPath: /etc/tenantry
    readOnly: true
  {{- end }}
  - name: tmp
    mountPath: /tmp
{{- end }}

{{- define "tenantry.tmp" -}}
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 64Mi
{{- end }}

{{- define "tenantry.volumes" -}}
- name: secrets
  secret:
    secretName: {{ .Values.secretName }}
    defaultMode: 0440
{{- if .Values.plans }}
- name: plans
  configMap:
    name: {{ .Release.Name }}-plans
{{- end }}
{{ include "tenantry.tmp" . }}
{{- end }}
